"""Speculation changes nothing: whoever drafts, whatever the state, however the engine is pressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.models.conformance import assert_equal_to_oracle, bits, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.drafters import Blind, Knowing, speculating
from tests.spec.families import FAMILIES

from holdfast import LLM, SamplingParams
from holdfast.request import RequestOutput

EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=112, page_size=8, fold_every=8, exact=True)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-overlap": dict(overlap=False),
    "chunks-of-7": dict(max_num_batched_tokens=7),
    "opposite-axis-order": dict(backend="reference_kv"),
    "pre-empted": dict(num_pages=16),
    "everything": dict(num_pages=16, max_num_batched_tokens=9, backend="reference_kv", sanitizer="full"),
}
PARAMS = [
    SamplingParams(max_tokens=60, ignore_eos=True, logprobs=2),
    SamplingParams(
        max_tokens=50, ignore_eos=True, logprobs=1, temperature=0.9, seed=1, repetition_penalty=1.3
    ),
    SamplingParams(max_tokens=45, ignore_eos=True, temperature=1.2, seed=2, top_p=0.8, frequency_penalty=0.4),
    SamplingParams(max_tokens=40, logprobs=0, seed=3, temperature=0.7, stop_token_ids=(5, 6), min_tokens=12),
    SamplingParams(max_tokens=30, ignore_eos=True, seed=4, temperature=2.0, top_k=9, logit_bias={3: 4.0}),
]
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24, 17, 3)]


def without(directory: Path, **options: Any) -> list[RequestOutput]:
    return LLM(directory, **EXACT, **options).generate(GIVEN, PARAMS)


def texts(outputs: list[RequestOutput]) -> list[list[int]]:
    return [[*output.prompt_token_ids, *output.token_ids] for output in outputs]


DRAFTERS = ((0.8, 7), (0.0, 3), (1.0, 5))
"""How often it is right, and how many drafts it makes."""
CASES = [
    (family, way, DRAFTERS[(place + turn) % len(DRAFTERS)])
    for place, family in enumerate(FAMILIES)
    for turn, way in enumerate(WAYS)
]
DAILY = [
    case for case in CASES if case[:2] in (("gated-delta", "everything"), ("selective-scan", "pre-empted"))
]


@pytest.mark.parametrize(("family", "way", "drafter"), slow_but(DAILY, CASES))
def test_the_same_bits(find: Find, family: str, way: str, drafter: tuple[float, int]) -> None:
    """Tokens and log-probabilities, greedy and drawn, with penalties, biases and stops inside windows."""
    (right, depth), directory = drafter, find(family)[0]
    wanted = without(directory)
    llm = speculating(directory, Knowing(depth, texts(wanted), right), **EXACT, **WAYS[way])
    outputs = llm.generate(GIVEN, PARAMS)
    assert bits(outputs) == bits(wanted)
    assert [o.finish_reason for o in outputs] == [o.finish_reason for o in wanted]
    found = llm.speculation_stats()
    assert found.drafts > 20 and (right or not found.accepted)
    if right == 1.0:
        assert found.accepted > 0.9 * found.drafts - 5 * len(GIVEN), "only drafts beyond a stop are rejected"
    if "num_pages" in WAYS[way]:
        assert sum(output.metrics.preemptions for output in outputs)
    assert llm._engine.scheduler._cache.check().clean


@pytest.mark.parametrize("family", slow_but(["state-space"], FAMILIES))
def test_at_every_offset_from_lines_and_pages(find: Find, family: str) -> None:
    """Windows begin and end everywhere between them; of those that are all right, none is shorter than it may be."""
    directory = find(family)[0]
    given = [[token % 200 for token in prompt] for prompt in prompts(*range(1, 18))]
    params = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=0)
    sizes = EXACT | dict(page_size=16, fold_every=8, max_num_seqs=8)
    wanted = LLM(directory, **sizes).generate(given, params)
    for right, depth in ((1.0, 7), (0.6, 4)):
        llm = speculating(directory, Knowing(depth, texts(wanted), right), **sizes)
        assert bits(llm.generate(given, params)) == bits(wanted)
        assert llm.speculation_stats().accepted > 50


@pytest.mark.parametrize("family", slow_but(["gated-delta"], FAMILIES))
def test_hits_on_lines_that_were_crossed_inside_windows(find: Find, family: str) -> None:
    """At every offset of window and page; the answers are long enough for twenty pages."""
    directory = find(family)[0]
    params = SamplingParams(max_tokens=160, ignore_eos=True, logprobs=1)
    short = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=1)
    given = GIVEN[1:2]
    sizes = EXACT | dict(max_model_len=192)
    plain = LLM(directory, **sizes, enable_prefix_caching=False)
    wanted = plain.generate(given, params)
    llm = speculating(directory, Knowing(4, texts(wanted), 0.8), **sizes)
    assert bits(llm.generate(given, params)) == bits(wanted)
    cached = 0
    for text in texts(wanted):
        asked = [[*text[:length], 7, 9] for length in range(len(text) - 12, len(text))]
        outputs = [llm.generate([one], short)[0] for one in asked]
        assert bits(outputs) == bits(plain.generate(asked, short))
        cached += sum(output.cached_tokens > len(text) - 40 for output in outputs)
    assert cached >= 8, "most resume behind lines that only windows have passed"


@pytest.mark.parametrize("family", slow_but(["gated-delta", "selective-scan"], FAMILIES))
def test_equal_to_transformers(find: Find, family: str) -> None:
    """Under the rules of evidence, in normal mode."""
    directory, oracle = find(family)
    given = [[token % 200 for token in prompt] for prompt in prompts(150, 70, 5)]
    params = SamplingParams(max_tokens=64, ignore_eos=True, logprobs=4)
    texts = [[*prompt, *oracle.run(prompt, 64).tokens] for prompt in given]
    for drafter in (Knowing(6, texts, 0.7), Blind(15)):
        llm = speculating(directory, drafter, max_num_seqs=3, max_model_len=320, page_size=16)
        assert_equal_to_oracle(oracle, given, llm.generate(given, params))
        assert llm.speculation_stats().drafts > 50


def test_results_tell_what_was_accepted(find: Find) -> None:
    directory = find("convolution")[0]
    params = SamplingParams(max_tokens=41, ignore_eos=True)
    wanted = LLM(directory, max_model_len=256).generate(GIVEN[:1], params)
    llm = speculating(directory, Knowing(4, texts(wanted), 1.0), max_model_len=256)
    [output] = llm.generate(GIVEN[:1], params)
    found = output.metrics.speculation
    everybody = vars(llm.speculation_stats())
    assert vars(found).items() <= everybody.items() and everybody["depth"] == 4
    assert sum(found.accepted_at) == found.accepted <= found.drafts
    assert found.accepted_at == sorted(found.accepted_at, reverse=True)
    assert found.windows * found.accept_length == pytest.approx(found.windows + found.accepted)
    assert 2.0 < found.accept_length <= 5.0
