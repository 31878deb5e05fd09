"""A prefix hit equals a cold start: bit for bit in exact mode, whatever left the checkpoint behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.evidence import random_prompt

from holdfast import LLM, SamplingParams
from holdfast.cache import CacheCounters
from holdfast.request import RequestOutput

SIZES: dict[str, Any] = dict(max_num_seqs=4, max_model_len=320, page_size=16, exact=True)


def params(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, logprobs=2)


def cold(directory: Path, prompts: list[list[int]], count: int, **options: Any) -> list[RequestOutput]:
    llm = LLM(directory, **{**SIZES, "enable_prefix_caching": False, **options})
    return llm.generate(prompts, params(count))


def bits(outputs: list[RequestOutput]) -> list[Any]:
    return [[(answer.token_ids, answer.logprobs) for answer in output.outputs] for output in outputs]


def counters(llm: LLM) -> CacheCounters:
    return llm.cache_stats().counters


def prompt(length: int, seed: int = 0) -> list[int]:
    """Tokens that every one of the models knows."""
    return [token % 200 for token in random_prompt(length, seed)]


def assert_whole(llm: LLM) -> None:
    audit = llm._engine.scheduler._cache.check()
    assert audit.clean, audit


@pytest.mark.parametrize("overlap", [True, False])
def test_a_hit_at_every_residue_of_the_page(directory: Path, overlap: bool) -> None:
    """Others part from the first prompt, and from the answer to it, at each place of a page."""
    sizes = dict(page_size=8, fold_every=8, overlap=overlap)
    llm, stem = LLM(directory, **{**SIZES, **sizes}), prompt(27)
    [donor] = llm.generate([stem], params(14))
    whole = [*stem, *donor.token_ids]
    asked = [[*whole[:length], *prompt(3, length)] for length in range(20, 41)]
    outputs = [llm.generate([one], params(3))[0] for one in asked]
    assert bits(outputs) == bits(cold(directory, asked, 3, **sizes))
    resumed = [output.cached_tokens for output in outputs]
    assert sum(resumed) > 0.6 * sum(len(one) for one in asked)
    assert resumed[-1] == 40, "the last whole page of the first answer"
    assert_whole(llm)


@pytest.mark.parametrize("page_size", [16, pytest.param(32, marks=pytest.mark.slow), 64])
def test_ten_turns_each_resumed_from_the_one_before(directory: Path, page_size: int) -> None:
    llm = LLM(directory, **{**SIZES, "page_size": page_size})
    talk: list[int] = []
    for turn in range(10):
        talk += prompt(13, turn)
        [output] = llm.generate([talk], params(11))
        assert len(talk) - output.cached_tokens <= 13 + 2 * page_size
        if turn in (4, 9):
            assert bits([output]) == bits(cold(directory, [talk], 11, page_size=page_size))
        talk += output.token_ids
    assert counters(llm).resumed_tokens > 0.5 * counters(llm).prompt_tokens
    assert_whole(llm)


def test_a_checkpoint_of_a_prompt_and_one_of_an_answer(directory: Path) -> None:
    """The same tokens, once as a prompt and once as an answer: the same state."""
    stem = prompt(10)
    [whole] = cold(directory, [stem], 60)
    later = [*stem, *whole.token_ids[:55], *prompt(5, 1)]
    [expected] = cold(directory, [later], 8)
    answered = LLM(directory, **SIZES)
    answered.generate([stem], params(60))
    read = LLM(directory, **SIZES)
    read.generate([[*stem, *whole.token_ids[:54], 7]], params(1))
    for llm in (answered, read):
        [output] = llm.generate([later], params(8))
        assert output.cached_tokens == 64 or (llm is answered and output.cached_tokens == 48)
        assert bits([output]) == bits([expected])
        assert_whole(llm)


def test_hits_while_the_donor_runs(directory: Path) -> None:
    llm, stem = LLM(directory, **SIZES), prompt(40)
    stream = llm.stream(stem, params(60))
    while len((donor := next(stream)).token_ids) < 30:
        pass
    branches = [[*stem, *donor.token_ids[:cut], *prompt(4, cut)] for cut in (0, 9, 25)]
    outputs = llm.generate(branches, params(6))
    *_, donor = stream
    assert all(output.cached_tokens >= 32 for output in outputs)
    assert bits([donor]) == bits(cold(directory, [stem], 60))
    assert bits(outputs) == bits(cold(directory, branches, 6))
    assert_whole(llm)


def test_those_who_arrive_together_compute_their_prefix_once(directory: Path) -> None:
    llm, stem = LLM(directory, **SIZES, max_num_batched_tokens=48), prompt(75)
    asked = [[*stem, *prompt(5 + n, n + 1)] for n in range(4)]
    outputs = llm.generate(asked, params(4))
    recurrent = llm.capacity.limits.num_slots > 0  # pages alone are shared as they fill
    first, *others = [output.cached_tokens for output in outputs]
    assert first == 0 and all(cached == 64 or (cached == 48 and not recurrent) for cached in others)
    assert bits(outputs) == bits(cold(directory, asked, 4))
    assert counters(llm).waited == 3
    assert_whole(llm)


def test_several_answers_share_their_prompt(directory: Path) -> None:
    drawn = SamplingParams(max_tokens=6, n=3, temperature=1.0, seed=5, logprobs=0, ignore_eos=True)
    llm, given = LLM(directory, **SIZES), prompt(90)
    [output] = llm.generate([given], drawn)
    [expected] = LLM(directory, **SIZES, enable_prefix_caching=False).generate([given], drawn)
    assert bits([output]) == bits([expected])
    assert [answer.metrics.cached_tokens for answer in output.outputs] == [0, 80, 80]


@pytest.mark.parametrize("overlap", [True, False])
def test_an_answer_that_ends_on_a_line_is_folded_and_kept(directory: Path, overlap: bool) -> None:
    llm, stem = LLM(directory, **SIZES, overlap=overlap), prompt(20)
    [output] = llm.generate([stem], params(13))  # 32 absorbed; the last one is never
    later = [*stem, *output.token_ids, 3, 4]
    [resumed] = llm.generate([later], params(3))
    assert resumed.cached_tokens == 32
    assert bits([resumed]) == bits(cold(directory, [later], 3))


def test_after_evictions_of_every_kind(directory: Path) -> None:
    """Pools so small that pages, checkpoints and running requests displace each other all the time."""
    tiny = dict(num_pages=16, max_model_len=96, max_num_seqs=2, num_checkpoints=3)
    llm = LLM(directory, **{**SIZES, **tiny})
    roots = [prompt(40, seed) for seed in range(3)]
    asked = [[*roots[n % 3][: 20 + 7 * (n % 4)], *prompt(6 + n % 5, n)] for n in range(16)]
    outputs = [output for n in range(0, 16, 2) for output in llm.generate(asked[n : n + 2], params(9))]
    assert bits(outputs) == bits(cold(directory, asked, 9))
    found = counters(llm)
    assert found.evicted_pages and found.resumed_tokens
    assert not llm.capacity.limits.num_slots or found.evicted_checkpoints + found.lost_checkpoints
    assert_whole(llm)


@pytest.mark.parametrize("overlap", [True, False])
def test_preempted_is_uninterrupted_and_does_not_begin_anew(directory: Path, overlap: bool) -> None:
    asked = [prompt(50, 1), prompt(45, 2)]
    tight = dict(page_size=16, num_pages=9, max_model_len=130, max_num_seqs=2, overlap=overlap)
    llm = LLM(directory, **{**SIZES, **tight})
    outputs = llm.generate(asked, params(40))
    assert sum(output.metrics.preemptions for output in outputs)
    assert counters(llm).resumed_after_preemption >= 32
    assert bits(outputs) == bits(cold(directory, asked, 40))
    assert_whole(llm)


def test_a_reset_forgets_everything(directory: Path) -> None:
    llm, given = LLM(directory, **SIZES), prompt(40)
    for expected in (0, 32):
        assert llm.generate([given], params(2))[0].cached_tokens == expected
    llm.reset_prefix_cache()
    assert (llm.cache_stats().pages, llm.cache_stats().checkpoints) == (0, 0)
    [output] = llm.generate([given], params(2))
    assert output.cached_tokens == 0
    assert output.metrics.cache_reason == "no page of this prompt was computed before"


def test_the_reason_is_told(directory: Path) -> None:
    llm, given = LLM(directory, **SIZES), prompt(40)
    llm.generate([given], params(1))
    scored = SamplingParams(max_tokens=1, prompt_logprobs=0)
    reasons = {
        "resumed at 32, as far as the prompt was computed before": params(1),
        "matched 32 tokens of KV, resumed at 0: every token of the prompt has to be scored": scored,
    }
    for reason, how in reasons.items():
        assert llm.generate([given], how)[0].metrics.cache_reason == reason
    off = LLM(directory, **SIZES, enable_prefix_caching=False)
    assert off.generate([given], params(1))[0].metrics.cache_reason == "prefix caching is off"
    assert off.capacity.limits.num_checkpoints == 0
