"""When `holdfast verify` calls two answers equal, with numbers made up for it."""

from __future__ import annotations

import math

import pytest

from holdfast.request import TokenLogprob
from holdfast.verify.rules import KL_BOUND, compare, divergence


def scored(*best: tuple[int, float]) -> TokenLogprob:
    """The first token is chosen; all are listed."""
    return TokenLogprob(*best[0], top=best)


SURE = scored((7, -0.1), (3, -2.5))
CLOSE = scored((7, -0.7), (3, -0.70005))
"""A tie, nearly: the second is 5e-5 behind."""


def test_equal_answers_are_equal_in_every_grade() -> None:
    for dtype, exact in (("float32", True), ("float32", False), ("bfloat16", False)):
        found = compare([SURE, CLOSE], [SURE, CLOSE], dtype=dtype, exact=exact)
        assert found.failure is None and found.positions == 2 and not found.tie and found.worst == 0.0


def test_float32_allows_a_rounding_error_and_exact_mode_does_not() -> None:
    near = scored((7, -0.1 + 5e-5), (3, -2.5))
    found = compare([SURE], [near], dtype="float32", exact=False)
    assert found.failure is None and found.worst == pytest.approx(5e-5)
    assert compare([SURE], [near], dtype="float32", exact=True).failure


@pytest.mark.parametrize("logprob", [-0.1 + 2e-4, -0.1 - 2e-4, math.nan, -math.inf])
def test_float32_refuses_a_log_probability_that_is_farther_off(logprob: float) -> None:
    assert compare([SURE], [scored((7, logprob))], dtype="float32", exact=False).failure


def test_a_tie_ends_the_comparison_and_only_a_tie_does() -> None:
    other = scored((3, -0.70005), (7, -0.7))
    found = compare([CLOSE, SURE], [other, scored((9, -5.0))], dtype="float32", exact=False)
    assert found.failure is None and found.tie and found.positions == 1
    failure = compare([SURE], [scored((3, -2.5))], dtype="float32", exact=False).failure
    assert failure and "token 0 of the answer: expected 7 (-0.100000), found 3 (-2.500000)" in failure


def test_a_token_that_the_reference_does_not_list_is_wrong() -> None:
    failure = compare([SURE], [scored((9, -0.1))], dtype="float32", exact=False).failure
    assert failure and "not among the reference's best" in failure


def test_an_answer_of_another_length_is_wrong() -> None:
    failure = compare([SURE, SURE], [SURE], dtype="float32", exact=False).failure
    assert failure == "1 tokens where the reference has 2"


def test_bits_include_those_of_the_alternatives() -> None:
    assert compare([SURE], [scored((7, -0.1), (3, -2.5 + 1e-9))], dtype="float32", exact=True).failure


def test_divergence_is_that_of_the_distributions() -> None:
    p, q = (0.7, 0.2, 0.1), (0.6, 0.1, 0.3)
    listed = [scored(*((token, math.log(x)) for token, x in enumerate(each))) for each in (p, q)]
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    assert divergence(*listed) == pytest.approx(whole)
    # the last token is not listed, and is the rest
    assert divergence(*(scored(*each.top[:2]) for each in listed)) == pytest.approx(whole)
    assert divergence(listed[0], listed[0]) == 0.0
    assert divergence(listed[0], scored((0, math.nan))) == math.inf


def test_lower_precision_has_a_bound_on_the_divergence() -> None:
    def coin(p: float) -> TokenLogprob:
        return scored((1, math.log(p)), (0, math.log(1 - p)))

    found = compare([coin(0.6)], [coin(0.62)], dtype="bfloat16", exact=False)
    assert found.failure is None and 0 < found.worst < KL_BOUND["bfloat16"]
    failure = compare([coin(0.6)], [coin(0.9)], dtype="bfloat16", exact=False).failure
    assert failure and "where bfloat16 may have 0.05" in failure
    # where both choose different tokens that were nearly as likely, they go on apart
    flipped = scored((0, math.log(0.51)), (1, math.log(0.49)))
    found = compare([coin(0.51), coin(0.6)], [flipped, coin(0.01)], dtype="bfloat16", exact=False)
    assert found.failure is None and found.tie and found.positions == 1
