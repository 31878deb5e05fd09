"""The pure functions of the scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.request import FinishReason, Request, SamplingParams
from holdfast.scheduler.admission import refusal
from holdfast.scheduler.chunking import chunk_len, cut_align
from holdfast.scheduler.finish import finish_reason, most_tokens

from .examples import EXAMPLES
from .harness import make_limits, make_request


@pytest.mark.parametrize(
    ("done", "target", "budget", "length"),
    [
        (0, 10, 64, 10),  # all of it
        (0, 100, 100, 100),  # a run that ends is not cut
        (0, 200, 100, 64),  # a cut falls on a boundary
        (64, 200, 100, 64),
        (10, 200, 100, 54),  # and so brings a run back to the grid
        (10, 200, 20, 20),  # unless none is within reach
        (64, 200, 63, 63),
        (128, 129, 1, 1),
    ],
)
def test_chunk_len(done: int, target: int, budget: int, length: int) -> None:
    assert chunk_len(done, target, budget, align=64) == length


@EXAMPLES
@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 300), st.sampled_from([16, 64, 128]))
def test_chunk_len_always_gets_on(done: int, todo: int, budget: int, align: int) -> None:
    length = chunk_len(done, done + todo, budget, align)
    assert 1 <= length <= min(todo, budget)
    boundaries = [end for end in range(done + 1, done + min(todo, budget) + 1) if end % align == 0]
    if length < todo and boundaries:
        assert done + length == boundaries[-1]


@pytest.mark.parametrize(("page_size", "align"), [(16, 64), (64, 64), (256, 256)])
def test_runs_are_cut_where_a_page_and_a_block_end(page_size: int, align: int) -> None:
    assert cut_align(make_limits(page_size=page_size)) == align


def test_refusals_say_what_to_change() -> None:
    limits = make_limits(max_model_len=8, vocab_size=10)
    assert refusal(make_request("a", tuple(range(7))), limits) is None
    assert "at least one token" in str(refusal(make_request("a", ()), limits))
    too_long = str(refusal(make_request("a", (1,) * 8), limits))
    assert "8 tokens" in too_long and "room for 7" in too_long and "max_model_len" in too_long
    for token in (10, -1):
        unknown = str(refusal(make_request("a", (1, token)), limits))
        assert f"token {token} at place 1" in unknown and "tokenizer" in unknown


def answered(*output: int, ignore_eos: bool = False, max_tokens: int = 10) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, stop_token_ids=(7,))
    return Request("a", (1, 2), params, eos_token_ids=frozenset({9}), tokens=[1, 2, *output])


def test_finish_reasons() -> None:
    assert finish_reason(answered(3), 50) is None
    assert finish_reason(answered(9), 50) is FinishReason.STOP
    assert finish_reason(answered(9, ignore_eos=True), 50) is None
    assert finish_reason(answered(7, ignore_eos=True), 50) is FinishReason.STOP
    assert finish_reason(answered(3, 4, max_tokens=2), 50) is FinishReason.LENGTH
    assert finish_reason(answered(3, 9, max_tokens=2), 50) is FinishReason.STOP
    assert finish_reason(answered(3, 4), 4) is FinishReason.LENGTH
    assert most_tokens(answered(), 50) == 12
    assert most_tokens(answered(), 5) == 5
