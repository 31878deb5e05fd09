"""Through the whole engine: every answer is the one that the definitions give, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.random_model import ENDOFTEXT, IM_END
from torch import Tensor

from holdfast import FinishReason, Rejected, RequestOutput, SamplingParams
from holdfast.answer import derived_seed, one_for_each_answer
from holdfast.ops.sampling.reference import gumbel
from holdfast.request import Request

from . import oracle
from .conftest import ROOMY, TIGHT, Engines

LogitsOf = Callable[[tuple[int, ...]], Tensor]

PROMPTS = ["Hello there, general", "x", "The quick brown fox jumps over a lazy dog", "1 2 3 4 5 6", "C", "D"]
PARAMS = [
    SamplingParams(max_tokens=24, temperature=1.1, seed=1, repetition_penalty=1.4, ignore_eos=True),
    SamplingParams(
        max_tokens=28, temperature=0.8, seed=2, top_k=20, frequency_penalty=0.9, presence_penalty=-0.4
    ),
    SamplingParams(
        max_tokens=30, presence_penalty=1.5, frequency_penalty=0.3, min_tokens=30, repetition_penalty=1.1
    ),
    SamplingParams(
        max_tokens=30,
        temperature=2.0,
        seed=-9,
        top_p=0.9,
        min_p=0.02,
        min_tokens=15,
        logit_bias={IM_END: 30.0, 65: 3.0},
    ),
    SamplingParams(max_tokens=12, frequency_penalty=2.0, logit_bias={65: 50.0, 66: 50.0, 67: 50.0}),
    SamplingParams(max_tokens=25, temperature=1.0, seed=5, ignore_eos=True),
]
STOPS = (IM_END, ENDOFTEXT)


def tokens_of(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def answers(engines: Engines) -> list[RequestOutput]:
    """Each alone in the engine, no step overlapping another."""
    llm = engines(**ROOMY, overlap=False)
    return [llm.generate(prompt, params)[0] for prompt, params in zip(PROMPTS, PARAMS, strict=True)]


def test_every_choice_is_the_one_that_the_definitions_make(
    answers: list[RequestOutput], logits_of: LogitsOf
) -> None:
    """Given the tokens before it: transformers' logits, numpy's adjustments, and the noise of its seed."""
    for output, params in zip(answers, PARAMS, strict=True):
        prompt = output.prompt_token_ids
        logits = logits_of(prompt + output.token_ids)[len(prompt) - 1 :].double().numpy()
        stops = () if params.ignore_eos else STOPS
        for place, token in enumerate(output.token_ids):
            changed = oracle.adjusted(logits[place], params, prompt, output.token_ids[:place], stops)
            scores = changed
            if params.temperature:
                position = torch.tensor([len(prompt) + place])
                noise = gumbel(torch.tensor([params.seed]), position, len(changed))[0].numpy()
                with np.errstate(divide="ignore"):
                    scores = np.log(oracle.distribution(changed, params)) + noise
            assert scores[token] > scores.max() - 1e-3, (output.request_id, place)


@pytest.mark.parametrize(
    "options",
    [
        ROOMY | dict(overlap=True),
        ROOMY | dict(overlap=False, max_num_batched_tokens=5),
        TIGHT | dict(overlap=True),
        TIGHT | dict(overlap=False, max_num_batched_tokens=7),
    ],
    ids=["together", "small-chunks", "pre-empted", "pre-empted-in-small-chunks"],
)
def test_company_order_chunks_overlap_and_preemption_change_nothing(
    engines: Engines, answers: list[RequestOutput], options: dict[str, Any]
) -> None:
    together = engines(**options).generate(PROMPTS, PARAMS)
    assert tokens_of(together) == tokens_of(answers)
    preempted = sum(output.metrics.preemptions for output in together)
    assert (preempted > 0) == (options["num_pages"] == TIGHT["num_pages"])
    turned = engines(**options).generate(PROMPTS[::-1], PARAMS[::-1])
    assert tokens_of(turned)[::-1] == tokens_of(answers)


def test_an_end_comes_neither_before_min_tokens_nor_long_after(answers: list[RequestOutput]) -> None:
    assert len(answers[2].token_ids) == 30
    early = answers[3]  # is pushed to end at once
    assert len(early.token_ids) == 16 and early.token_ids[-1] == IM_END
    assert early.finish_reason is FinishReason.STOP and early.stop_reason is None


def test_a_biased_token_is_always_or_never_chosen(engines: Engines) -> None:
    llm = engines(**ROOMY)
    forced = SamplingParams(max_tokens=8, temperature=1.0, seed=3, logit_bias={66: 100.0})
    assert llm.generate("x", forced)[0].text == "B" * 8
    drawn = llm.generate("x", SamplingParams(max_tokens=20, temperature=1.0, seed=3))[0]
    banned = dict.fromkeys(drawn.token_ids, -100.0)
    others = llm.generate("x", SamplingParams(max_tokens=20, temperature=1.0, seed=3, logit_bias=banned))[0]
    assert not set(others.token_ids) & set(drawn.token_ids)


def test_plain_greedy_answers_pay_for_nothing_else(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError("nobody asked for this")

    llm = engines(**ROOMY, seed=4)
    for name in ("adjust", "truncate", "gumbel"):
        monkeypatch.setattr(f"holdfast.ops.sampling.reference.{name}", refuse)
    monkeypatch.setattr(llm._engine.runner.model.ops, "log_softmax", refuse)
    params = SamplingParams(max_tokens=4, top_k=5, stop="no such text", stop_token_ids=[3])
    assert len(llm.generate(PROMPTS, params)) == len(PROMPTS)


def test_logprobs_are_the_models_own(engines: Engines, logits_of: LogitsOf) -> None:
    params = SamplingParams(
        max_tokens=12,
        temperature=2.0,
        top_k=5,
        seed=8,
        logprobs=3,
        repetition_penalty=2.0,
        logit_bias={70: 5.0},
    )
    [output] = engines(**ROOMY).generate("Some words", params)
    wanted = logits_of(output.prompt_token_ids + output.token_ids).log_softmax(-1)
    assert output.logprobs is not None
    for place, scored in enumerate(output.logprobs, start=len(output.prompt_token_ids) - 1):
        assert scored.token_id == output.token_ids[place - len(output.prompt_token_ids) + 1]
        assert scored.logprob == pytest.approx(float(wanted[place, scored.token_id]), abs=1e-4)
        values = [value for _, value in scored.top]
        assert values == pytest.approx(wanted[place].topk(3).values.tolist(), abs=1e-4)


def test_n_answers_are_those_of_n_seeds(engines: Engines) -> None:
    llm = engines(**ROOMY)
    params = dict(max_tokens=15, temperature=1.0, ignore_eos=True)
    [output] = llm.generate("Say", SamplingParams(**params, seed=5, n=4, prompt_logprobs=1))
    seeds = [5, *(derived_seed(5, number) for number in (1, 2, 3))]
    alone = llm.generate(["Say"] * 4, [SamplingParams(**params, seed=seed) for seed in seeds])
    assert [completion.token_ids for completion in output.outputs] == tokens_of(alone)
    assert len({completion.text for completion in output.outputs}) == 4
    assert not {6, 7, 8} & set(seeds), "those may be somebody else's"
    first = output.outputs[0]
    assert (output.text, output.token_ids, output.logprobs) == (first.text, first.token_ids, first.logprobs)
    assert (output.finish_reason, output.stop_reason) == (first.finish_reason, first.stop_reason)
    assert output.metrics is first.metrics and output.finished
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len("Say")


def test_the_prompt_of_n_answers_is_scored_once() -> None:
    params = SamplingParams(temperature=1.0, n=3, prompt_logprobs=5)
    requests = one_for_each_answer(Request("7", (1, 2), params, seed=9, eos_token_ids=frozenset({3})))
    assert [request.params.prompt_logprobs for request in requests] == [5, None, None]
    assert [request.id for request in requests] == ["7", "7.1", "7.2"]
    assert len({request.seed for request in requests}) == 3
    assert all((r.prompt, r.eos_token_ids) == ((1, 2), frozenset({3})) for r in requests)


def test_n_answers_are_streamed_together(engines: Engines) -> None:
    llm = engines(**ROOMY)
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=5, n=2, ignore_eos=True)
    outputs = list(llm.stream("Say", params))
    [whole] = llm.generate("Say", params)
    assert [c.token_ids for c in outputs[-1].outputs] == [c.token_ids for c in whole.outputs]
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_two_streams_may_take_turns(engines: Engines) -> None:
    """Whoever asks moves both on; neither loses its end, nor runs past its stop."""
    llm = engines(**ROOMY)
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    wanted = [output.text for output in llm.generate(["One", "Two"], params)]
    one, two = llm.stream("One", params), llm.stream("Two", params)
    next(two)
    assert list(one)[-1].text == wanted[0]
    assert list(two)[-1].text == wanted[1]


def test_without_a_seed_no_two_answers_are_equal(engines: Engines) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.5, ignore_eos=True)
    outputs = [output for _ in range(2) for output in engines(**ROOMY).generate(["x"] * 3, params)]
    assert len(set(tokens_of(outputs))) == 6


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (dict(logit_bias={65: 1.0, 99999: 2.0}), "logit_bias names token 99999; the vocabulary has 0 to"),
        (dict(logit_bias={-1: 2.0}), "logit_bias names token -1"),
        (dict(stop_token_ids=[4000]), "stop_token_ids names token 4000"),
    ],
)
def test_what_the_vocabulary_does_not_have_is_refused(
    engines: Engines, params: dict[str, Any], reason: str
) -> None:
    llm = engines(**ROOMY)
    with pytest.raises(Rejected, match=reason):
        llm.generate(["fine", "not fine"], [SamplingParams(max_tokens=3), SamplingParams(**params)])
    assert not llm._engine.has_work
    assert len(llm.generate("fine", SamplingParams(max_tokens=3))[0].token_ids) == 3


def test_a_failing_step_is_reported(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    llm = engines(**ROOMY, seed=2)
    monkeypatch.setattr(llm._engine.runner.sampler, "choose", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        llm.generate("x", SamplingParams(max_tokens=3))
