"""AsyncLLM: the same answers as LLM, and what only a concurrent caller can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.random_model import random_model

from holdfast import LLM, AsyncLLM, Rejected, RequestOutput, SamplingParams

OPTIONS: dict[str, Any] = dict(max_num_seqs=4, max_model_len=512, num_pages=40)
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
PROMPTS = [list(range(3, 3 + n)) for n in (1, 17, 64, 90, 5, 33)]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, timeout=120))


async def last(llm: AsyncLLM, prompt: list[int], params: SamplingParams = GREEDY) -> RequestOutput:
    outputs = [output async for output in llm.generate(prompt, params)]
    lengths = [len(output.token_ids) for output in outputs]
    assert lengths == sorted(lengths) and outputs[-1].finished
    return outputs[-1]


def idle(llm: AsyncLLM) -> bool:
    scheduler = llm._service.engine.scheduler
    audit = scheduler._cache.check()
    assert audit.leaked == 0
    return not scheduler.num_running + scheduler.num_waiting and not llm._service._answers


def test_many_at_once_equal_one_after_the_other() -> None:
    expected = [LLM(random_model(), **OPTIONS).generate([p], GREEDY)[0].token_ids for p in PROMPTS]

    async def work() -> None:
        async with AsyncLLM(random_model(), **OPTIONS) as llm:
            outputs = await asyncio.gather(*(last(llm, p) for p in PROMPTS))
            assert [o.token_ids for o in outputs] == expected
            assert idle(llm)

    run(work())


def test_leaving_the_iteration_gives_everything_back_and_disturbs_nobody() -> None:
    expected = LLM(random_model(), **OPTIONS).generate([PROMPTS[3]], GREEDY)[0].token_ids

    async def leave(llm: AsyncLLM) -> None:
        outputs = llm.generate(PROMPTS[1], SamplingParams(max_tokens=400, ignore_eos=True))
        async for output in outputs:
            if len(output.token_ids) >= 3:
                break
        await outputs.aclose()  # type: ignore[attr-defined]

    async def work() -> None:
        async with AsyncLLM(random_model(), **OPTIONS) as llm:
            other, *_ = await asyncio.gather(last(llm, PROMPTS[3]), leave(llm), leave(llm))
            assert other.token_ids == expected
            assert idle(llm)

    run(work())


def test_a_cancelled_task_cancels_its_request() -> None:
    async def work() -> None:
        async with AsyncLLM(random_model(), **OPTIONS) as llm:
            task = asyncio.create_task(last(llm, PROMPTS[2], SamplingParams(max_tokens=400, ignore_eos=True)))
            while not llm._service.engine.scheduler.num_running:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert idle(llm)
            assert (await last(llm, PROMPTS[0])).finished

    run(work())


def test_no_more_are_queued_than_max_pending() -> None:
    async def work() -> None:
        async with AsyncLLM(random_model(), max_pending=2, **OPTIONS) as llm:
            most = 0

            async def watched(prompt: list[int]) -> None:
                nonlocal most
                async for _ in llm.generate(prompt, GREEDY):
                    most = max(most, len(llm._service._answers))

            await asyncio.gather(*(watched(p) for p in PROMPTS))
            assert most == 2

    run(work())


def test_a_slow_reader_sees_the_end_and_delays_nobody() -> None:
    async def work() -> None:
        async with AsyncLLM(random_model(), **OPTIONS) as llm:
            slow = llm.generate(PROMPTS[1], GREEDY)
            first = await anext(slow)
            assert (await last(llm, PROMPTS[2])).finished
            rest = [output async for output in slow]
            assert len(first.token_ids) < 24 and len(rest[-1].token_ids) == 24

    run(work())


def test_a_refused_prompt_says_why_and_harms_nobody() -> None:
    async def work() -> None:
        async with AsyncLLM(random_model(), **OPTIONS) as llm:
            running = asyncio.create_task(last(llm, PROMPTS[1]))
            with pytest.raises(Rejected, match="prompt"):
                await last(llm, [])
            assert len((await running).token_ids) == 24

    run(work())


def test_a_failed_step_is_told_to_everyone_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with AsyncLLM(random_model(), **OPTIONS) as llm:

            def fail(*_: Any) -> None:
                raise ArithmeticError("planted")

            monkeypatch.setattr(llm._service.engine.runner, "launch", fail)
            outcomes = await asyncio.gather(*(last(llm, p) for p in PROMPTS[:3]), return_exceptions=True)
            assert all(isinstance(o, (ArithmeticError, RuntimeError)) for o in outcomes)

    run(work())


def test_closing_ends_what_runs() -> None:
    async def work() -> None:
        llm = AsyncLLM(random_model(), **OPTIONS)
        task = asyncio.create_task(last(llm, PROMPTS[2], SamplingParams(max_tokens=400, ignore_eos=True)))
        while not llm._service.engine.scheduler.num_running:
            await asyncio.sleep(0.01)
        await llm.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await task
        with pytest.raises(RuntimeError, match="closed"):
            await last(llm, PROMPTS[0])

    run(work())
