"""Prompt look-up against a plain search, and in the engine."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.conformance import bits, slow_but
from tests.random_model import random_model
from tests.reuse.families import Find
from tests.spec.families import FAMILIES

from holdfast import LLM, SamplingParams
from holdfast.ops.backend import REFERENCE
from holdfast.spec.drafter import VerifiedStep
from holdfast.spec.ngram import NGram

NOTHING: Any = None
"""The pools, and how to choose: it needs neither."""


def looked_up(tokens: list[int], depth: int, longest: int, shortest: int) -> list[int]:
    """The longest suffix that occurred before, where it did so last; what followed, and then follows itself."""
    end = len(tokens) - 1
    for size in range(min(longest, end), shortest - 1, -1):
        for last in range(end - 1, size - 2, -1):
            if tokens[last - size + 1 : last + 1] == tokens[end - size + 1 :]:
                text = list(tokens)
                for _ in range(depth):
                    text.append(text[last + 1 + len(text) - len(tokens)])
                return text[len(tokens) :]
    return []


def proposed(texts: list[list[int]], drafter: NGram, width: int) -> list[list[int]]:
    table = torch.full((len(texts) + 1, width), 7)  # what is left of others behind the last token
    for row, text in enumerate(texts, 1):
        table[row, : len(text)] = torch.tensor(text)
    here: Any = SimpleNamespace(
        rows=torch.arange(1, len(texts) + 1), position=torch.tensor([len(text) - 1 for text in texts])
    )
    step = VerifiedStep(
        here=here,
        tokens=table,
        longest=max(len(text) for text in texts),
        depth=drafter.depth,
        choose=NOTHING,
        state=NOTHING,
        kv=NOTHING,
    )
    draft = drafter.propose(step)
    assert draft.tokens.shape == (len(texts), drafter.depth) and draft.parents is None
    return [tokens[:count] for tokens, count in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True)]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=4),
    depth=st.integers(1, 15),
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
)
def test_as_a_plain_search(texts: list[list[int]], depth: int, shortest: int, more: int) -> None:
    drafter = NGram(depth, REFERENCE, longest=shortest + more, shortest=shortest)
    wanted = [looked_up(text, depth, shortest + more, shortest) for text in texts]
    assert proposed(texts, drafter, width=50) == wanted


def test_a_repetition_goes_on() -> None:
    drafter = NGram(7, REFERENCE, longest=4, shortest=2)
    assert proposed([[5, 1, 2, 3, 1, 2, 3, 1, 2]], drafter, 30) == [[3, 1, 2, 3, 1, 2, 3]]


@pytest.mark.parametrize("family", slow_but(["convolution"], FAMILIES))
def test_the_same_bits(find: Find, family: str) -> None:
    """Also where many drafts are right: prompts repeat themselves, and so do answers that a bias narrows."""
    directory = find(family)[0]
    sizes: dict[str, Any] = dict(max_num_seqs=3, max_model_len=112, page_size=8, fold_every=8, exact=True)
    given = [[1, 2, 3, 4] * 6, [7, 8, 9] * 5, [5] * 9]
    drawn = SamplingParams(max_tokens=30, ignore_eos=True, logprobs=1, temperature=1.0, seed=3)
    params = [replace(drawn, temperature=0.0), drawn, replace(drawn, logit_bias={5: 30.0, 6: 29.0})]
    wanted = LLM(directory, **sizes).generate(given, params)
    config = {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 1}
    llm = LLM(directory, **sizes, num_pages=16, sanitizer="full", speculative_config=config)
    assert bits(llm.generate(given, params)) == bits(wanted)
    found = llm.speculation_stats()
    assert 5 < found.accepted < found.drafts


@pytest.mark.parametrize("overlap", [False, True])
def test_an_answer_that_repeats_its_prompt_is_foreseen(overlap: bool) -> None:
    """A bias makes the model say one token after another."""
    config = {"method": "ngram", "num_speculative_tokens": 15, "prompt_lookup_min": 1}
    llm = LLM(random_model(), max_model_len=256, overlap=overlap, speculative_config=config)
    params = SamplingParams(max_tokens=80, ignore_eos=True, logit_bias={9: 100.0})
    [output] = llm.generate([[9, 9, 4]], params)
    assert output.token_ids == (9,) * 80
    found = output.metrics.speculation
    assert found.accept_length > 8 and found.windows < 12


def test_a_stop_string_ends_an_answer_inside_a_window() -> None:
    """The text is cut at it, tokens and log-probabilities after it, and nothing beyond is kept for others."""
    config = {"method": "ngram", "num_speculative_tokens": 15, "prompt_lookup_min": 1}
    plain = LLM(random_model(), max_model_len=256)
    llm = LLM(random_model(), max_model_len=256, speculative_config=config)
    assert plain.tokenizer is not None
    [letter] = plain.tokenizer.encode("a")
    for length in range(1, 24, 3):
        params = SamplingParams(
            max_tokens=64, ignore_eos=True, logprobs=0, logit_bias={letter: 100.0}, stop=("a" * length,)
        )
        [wanted], [output] = plain.generate(["aaab"], params), llm.generate(["aaab"], params)
        assert output.token_ids == wanted.token_ids == (letter,) * length
        assert (output.text, output.stop_reason) == (wanted.text, wanted.stop_reason) == ("", "a" * length)
        assert output.logprobs is not None and len(output.logprobs) == length
    assert llm.speculation_stats().accepted > 40
