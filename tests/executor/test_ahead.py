"""Two plain steps in flight beside the one that is collected: the same answers, whoever comes, ends or is stopped."""

from __future__ import annotations

from typing import Any

import pytest
from tests.executor.brief import Brief
from tests.models.conformance import bits
from tests.reuse.conftest import find
from tests.reuse.families import Find
from tests.spec.test_chains import EXACT, GIVEN

from holdfast import LLM, SamplingParams, Structured
from holdfast.request import FinishReason, Request

__all__ = ["find"]

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=2)
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}


def brief(llm: LLM) -> tuple[LLM, list[int]]:
    """And how many steps stayed in flight, turn by turn."""
    engine, left = llm._engine, list[int]()
    engine.runner._laps, step = Brief(), engine.step

    def watched() -> list[Request]:
        changed = step()
        left.append(len(engine._inflight))
        return changed

    engine.step = watched  # type: ignore[method-assign]
    return llm, left


@pytest.mark.parametrize("family", ["gated-delta", "attention", "convolution"])
def test_the_same_bits(find: Find, family: str) -> None:
    """Some end before others, and those that wait come then."""
    directory = find(family)[0]
    sizes: dict[str, Any] = EXACT | dict(max_num_seqs=2)
    alone = LLM(directory, **sizes, overlap=False)
    wanted = alone.generate(GIVEN, PARAMS)
    seen = [output.token_ids for output in wanted]
    stops = [SamplingParams(max_tokens=24, logprobs=2, stop_token_ids=[tokens[9]]) for tokens in seen]
    llm, left = brief(LLM(directory, **sizes))
    assert bits(llm.generate(GIVEN, PARAMS)) == bits(wanted)
    assert max(left) == 2 and left.count(2) > 10
    ended = llm.generate(GIVEN, stops)
    assert bits(ended) == bits(alone.generate(GIVEN, stops)) and len(ended[0].token_ids) <= 10
    assert llm._engine.scheduler._cache.check().clean and not llm._engine.has_work


def test_one_that_is_cancelled_gives_all_back(find: Find) -> None:
    llm, left = brief(LLM(find("gated-delta")[0], **EXACT))
    engine = llm._engine
    requests = [Request(str(n), tuple(given), PARAMS) for n, given in enumerate(GIVEN[:2])]
    for request in requests:
        engine.submit(request)
    while left[-2:] != [2, 2]:
        engine.step()
    known = len(requests[0].tokens)
    assert engine.cancel("0") and requests[0].finish_reason is FinishReason.CANCELLED
    while engine.has_work:
        engine.step()
    assert len(requests[0].tokens) == known and len(requests[1].output) == 24
    assert engine.scheduler._cache.check().clean


@pytest.mark.parametrize(
    "options",
    [{"overlap": False}, {"sanitizer": "stamps"}, {"speculative_config": NGRAM}],
    ids=["no-overlap", "sanitizer", "drafts"],
)
def test_what_is_not_plain_waits_for_the_step_before(find: Find, options: dict[str, Any]) -> None:
    llm, left = brief(LLM(find("gated-delta")[0], **EXACT, **options))
    llm.generate(GIVEN, PARAMS)
    assert max(left) == options.get("overlap", 1)


def test_a_step_with_a_grant_is_collected_before_another_is_planned(find: Find) -> None:
    """Slots are promised at lines, and a row can hold one grant."""
    llm, left = brief(LLM(find("gated-delta")[0], **EXACT))
    engine, granted = llm._engine, list[int]()
    for number, given in enumerate(GIVEN[:2]):
        engine.submit(Request(str(number), tuple(given), PARAMS))
    while engine.has_work:
        engine.step()
        if engine._inflight and engine._inflight[-1].plan.grants:
            granted.append(left[-1])
    assert len(granted) > 2 and set(granted) == {1} and 2 in left


def test_nor_does_an_answer_with_a_form_go_ahead() -> None:
    llm, left = brief(LLM(max_num_seqs=2, max_model_len=128))
    form = SamplingParams(max_tokens=12, structured=Structured(regex="tide [0-9]{2}"))
    [answer] = llm.generate(["The sea at night"], form, progress=False)
    assert answer.text.startswith("tide ") and max(left) == 1


@pytest.mark.parametrize("prompt", [GIVEN[1], GIVEN[1][:1]], ids=["a-run", "one-token"])
def test_who_comes_is_behind_one_step_only(find: Find, prompt: list[int]) -> None:
    llm, left = brief(LLM(find("gated-delta")[0], **EXACT))
    engine = llm._engine
    engine.submit(Request("a", tuple(GIVEN[0]), PARAMS))
    while left[-2:] != [2, 2]:
        engine.step()
    engine.submit(Request("b", tuple(prompt), PARAMS))
    engine.step()
    assert left[-1] == 1
    while engine.has_work:
        engine.step()
    assert 2 in left[-20:]
