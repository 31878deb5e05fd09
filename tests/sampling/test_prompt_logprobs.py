"""Log-probabilities of a prompt: those of one pass over it, however it is cut, delayed or begun again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from holdfast import RequestOutput, SamplingParams

from .conftest import ROOMY, TIGHT, Engines

LogitsOf = Callable[[tuple[int, ...]], Tensor]

PROMPT = "It is a truth universally acknowledged, that a single engine in possession of a good cache"
ASKING = SamplingParams(max_tokens=4, prompt_logprobs=4, ignore_eos=True)


def check(output: RequestOutput, logits_of: LogitsOf, alternatives: int) -> None:
    tokens, scores = output.prompt_token_ids, output.prompt_logprobs
    assert scores is not None and len(scores) == len(tokens) and scores[0] is None
    wanted = logits_of(tokens).log_softmax(-1)
    for place, scored in enumerate(scores[1:]):
        assert scored is not None and scored.token_id == tokens[place + 1]
        assert scored.logprob == pytest.approx(float(wanted[place, scored.token_id]), abs=1e-4)
        assert len(scored.top) == alternatives
        assert [value for _, value in scored.top] == pytest.approx(
            wanted[place].topk(alternatives).values.tolist(), abs=1e-4
        )
        for token, value in scored.top:
            assert value == pytest.approx(float(wanted[place, token]), abs=1e-4)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 2048])
def test_they_are_those_of_one_shot(engines: Engines, logits_of: LogitsOf, chunk: int, exact: bool) -> None:
    llm = engines(**ROOMY, max_num_batched_tokens=chunk, exact=exact)
    check(llm.generate(PROMPT, ASKING)[0], logits_of, 4)


@pytest.mark.parametrize("overlap", [True, False])
def test_preemption_neither_loses_nor_repeats_them(
    engines: Engines, logits_of: LogitsOf, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that grows takes the pages of a prompt that is still coming in, three tokens a step."""
    llm = engines(**TIGHT | dict(max_num_batched_tokens=3, overlap=overlap))
    starts = []
    start = llm._engine.runner.prompt_scorer.start

    def note(new: tuple[Any, ...]) -> None:
        starts.extend(new)
        start(new)

    monkeypatch.setattr(llm._engine.runner.prompt_scorer, "start", note)
    growing = SamplingParams(max_tokens=90, ignore_eos=True)
    outputs = llm.generate(["0123456789", PROMPT[:80]], [growing, ASKING])
    assert outputs[1].metrics.preemptions > 0
    half_done = [s.scored for s in starts if 0 < s.scored < 79]
    assert half_done, "no restart found some of them collected, and some not"
    check(outputs[1], logits_of, 4)
    assert outputs[0].prompt_logprobs is None


def test_each_gets_as_many_as_it_asked_for(engines: Engines, logits_of: LogitsOf) -> None:
    llm = engines(**ROOMY, max_num_batched_tokens=20)
    counts = (0, 6, None, 2)
    prompts = [PROMPT[:50], PROMPT[20:60], PROMPT[5:40], "z"]
    params = [SamplingParams(max_tokens=5, prompt_logprobs=count, ignore_eos=True) for count in counts]
    plain = [SamplingParams(max_tokens=5, ignore_eos=True)] * 4
    outputs = llm.generate(prompts, params)
    for output, count in zip(outputs, counts, strict=True):
        if count is None:
            assert output.prompt_logprobs is None
        else:
            check(output, logits_of, count)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in llm.generate(prompts, plain)]


def test_a_request_that_is_gone_leaves_the_next_none(engines: Engines) -> None:
    """It left its row in the middle of its prompt; the next one there has a prompt too, and asks for nothing."""
    service = engines(**ROOMY | dict(max_num_seqs=1, max_num_batched_tokens=7))._service
    gone = service.submit(PROMPT, ASKING)
    for _ in range(3):
        service.step()
    service.let_go(gone)
    assert 0 < len(gone[0].request.prompt_logprobs) < len(PROMPT) - 1
    [answer] = service.submit(PROMPT, SamplingParams(max_tokens=2, ignore_eos=True))
    while not answer.finished:
        service.step()
    service.let_go([answer])
    assert answer.request.prompt_logprobs == []


def test_a_cached_prefix_is_computed_again_for_them(engines: Engines, logits_of: LogitsOf) -> None:
    """State alone gives no logits: a request that owes them must not resume behind its prompt's beginning."""
    llm = engines(**{**ROOMY, "num_slots": 8}, seed=3)
    plain = SamplingParams(max_tokens=1)
    llm.generate(PROMPT, plain)
    assert llm.generate(PROMPT, plain)[0].cached_tokens > 0
    [output] = llm.generate(PROMPT, ASKING)
    assert output.cached_tokens == 0
    check(output, logits_of, 4)


def test_logits_of_prompts_exist_for_few_tokens_at_once(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engines(**ROOMY)
    sizes: list[int] = []
    logits = llm._engine.runner.model.logits

    def note(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(llm._engine.runner.model, "logits", note)
    llm.generate(PROMPT, SamplingParams(max_tokens=3))
    assert max(sizes) == 1
    sizes.clear()
    llm.generate(PROMPT, ASKING)
    assert max(sizes) == 16 and sum(sizes) == len(PROMPT) - 1 + 4
