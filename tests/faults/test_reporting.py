"""How a finding reaches whoever asked; everybody else goes on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.models.conformance import prompts

from holdfast import LLM, AsyncLLM, ConfigError, SamplingParams, StateCorruption
from holdfast.ops.places import Checkpoints, TemporalState

from .branches import moved_one_further
from .fault import QWEN, TREES, wrap
from .harness import OPTIONS, model_dir, run

GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
PROMPTS = prompts(40, 9, 20)
GUARDED: dict[str, Any] = dict(OPTIONS, sanitizer="stamps")


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    return [output.token_ids for output in LLM(model_dir(QWEN), **OPTIONS).generate(PROMPTS, GREEDY)]


def corrupt(patch: pytest.MonkeyPatch, row: int) -> None:
    """Row `row` reads a slot that nobody has written, in every layer."""

    def elsewhere(load: Any) -> Any:
        def other(state: TemporalState, at: Checkpoints) -> Any:
            slots = at.slots.masked_fill(at.rows == row, len(state.saved) - 1)
            return load(state, replace(at, slots=slots))

        return other

    wrap(patch, TemporalState, "load", elsewhere)


def test_a_batch_hands_out_the_other_answers(
    expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(model_dir(QWEN), **GUARDED)
    with monkeypatch.context() as patch, pytest.raises(StateCorruption) as caught:
        corrupt(patch, row=2)
        llm.generate(PROMPTS, GREEDY)
    error = caught.value
    assert error.request_ids == ("2",)
    assert [output.finish_reason for output in error.outputs] == ["length", "error", "length"]
    assert [error.outputs[i].token_ids for i in (0, 2)] == [expected[0], expected[2]]
    assert error.outputs[1].token_ids == expected[1][: len(error.outputs[1].token_ids)]

    finding = error.findings[0]
    assert (finding.what, finding.state, finding.row, finding.generation) == ("read", "temporal", 2, 1)
    assert finding.place == OPTIONS["num_slots"] and (finding.expected, finding.found) == (16, -1)
    assert finding.layer == "blocks.0" and finding.step > 1
    assert "read of temporal in layer blocks.0" in str(error)
    assert any(r.levelno == logging.ERROR and str(finding) in r.message for r in caplog.records)

    assert llm._engine.scheduler._cache.check().clean
    assert [output.token_ids for output in llm.generate(PROMPTS, GREEDY)] == expected, "it goes on serving"


def test_a_stream_raises_when_it_ends(
    expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(model_dir(QWEN), **GUARDED)
    corrupt(monkeypatch, row=1)
    seen = ()
    with pytest.raises(StateCorruption):
        for output in llm.stream(PROMPTS[1], GREEDY):
            seen = output.token_ids
    assert seen and seen == expected[1][: len(seen)]


def test_only_the_affected_of_many_streams_raises(
    expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    corrupt(monkeypatch, row=2)

    async def last(llm: AsyncLLM, prompt: list[int]) -> tuple[int, ...]:
        outputs = [output async for output in llm.generate(prompt, GREEDY)]
        return outputs[-1].token_ids

    async def work() -> list[Any]:
        async with AsyncLLM(model_dir(QWEN), **GUARDED) as llm:
            return await asyncio.gather(*(last(llm, p) for p in PROMPTS), return_exceptions=True)

    found = asyncio.run(asyncio.wait_for(work(), timeout=120))
    assert [isinstance(x, StateCorruption) for x in found] == [x not in expected for x in found]
    assert sum(isinstance(x, StateCorruption) for x in found) == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_s_own_token_is_not_handed_out(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in the step that folded line 16: nothing that it said, or a step launched behind it, is kept."""
    llm = LLM(model_dir(QWEN), **GUARDED, overlap=overlap)
    corrupt(monkeypatch, row=1)
    with pytest.raises(StateCorruption) as caught:
        llm.generate([PROMPTS[1]], GREEDY)
    [output] = caught.value.outputs
    assert len(output.prompt_token_ids) + len(output.token_ids) == 17 == caught.value.findings[0].expected + 1


def test_a_branch_that_moves_to_the_wrong_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reported in the very step, with the state that holds it and the position where it should have gone."""
    moved_one_further(monkeypatch)
    found = [finding for finding in run(TREES, "stamps").findings if finding.what == "move"]
    assert found and {finding.state for finding in found} <= {"conv.qkv", "temporal", "conv.hidden"}
    assert all(finding.found is not None and finding.found < finding.expected for finding in found)


def test_off_means_that_nothing_is_there() -> None:
    runner = LLM(model_dir(QWEN), **OPTIONS)._engine.runner
    states = [
        state for layer in runner.state.layers.values() for state in (*layer.conv.values(), layer.temporal)
    ]
    assert runner.sanitizer is None and runner.recomputation is None
    assert all(state is not None and state.watch is None for state in (*states, *runner.kv.layers.values()))


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="sanitizer='some' is not one of off, stamps, full"):
        LLM(model_dir(QWEN), sanitizer="some")
