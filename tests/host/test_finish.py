"""Requests that end for a reason that only their text shows, and those that may not end yet."""

from __future__ import annotations

import pytest

from holdfast.params import MAX_LISTED
from holdfast.request import FinishReason, Rejected
from holdfast.scheduler.finish import finish_reason

from .harness import Harness, make_limits, make_request


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("turns", range(8))
def test_a_finished_request_gives_all_back_and_is_not_reported_again(depth: int, turns: int) -> None:
    """Waiting, half absorbed, answering: whenever it is told, with steps in flight or without."""
    harness = Harness(make_limits(max_num_seqs=1, max_num_batched_tokens=4), depth)
    first, second = (
        make_request("a", (1, 2, 3, 4, 5, 6), max_tokens=9),
        make_request("b", (7, 8), max_tokens=4),
    )
    harness.submit(first, second)
    for _ in range(turns):
        harness.turn()
    known = list(first.output)
    assert harness.scheduler.finish("a", FinishReason.STOP)
    assert not harness.scheduler.finish("a", FinishReason.STOP)
    harness.drain()
    assert list(harness.ended) == ["b"]
    assert (first.finish_reason, first.output) == (FinishReason.STOP, known)
    assert (harness.scheduler.counters.finished, harness.scheduler.counters.cancelled) == (2, 0)


def test_a_request_that_waits_can_be_finished() -> None:
    harness = Harness(make_limits(max_num_seqs=1))
    harness.submit(make_request("a", (1, 2)), make_request("b", (3,)))
    harness.turn()
    assert harness.scheduler.finish("b", FinishReason.STOP)
    harness.drain()
    assert list(harness.ended) == ["a"]


def test_nothing_but_length_ends_an_answer_before_min_tokens() -> None:
    def reason(*output: int) -> FinishReason | None:
        options = dict(max_tokens=4, min_tokens=2, stop_token_ids=(7,))
        request = make_request("a", (1, 2), eos=frozenset({9}), **options)
        request.tokens += output
        return finish_reason(request, 50)

    assert reason(9) is reason(7) is reason(3, 9) is reason(3, 7) is None
    assert reason(3, 3, 9) is reason(3, 3, 7) is FinishReason.STOP
    assert reason(3, 3, 3, 3) is FinishReason.LENGTH


def test_what_ends_an_answer_is_told_to_the_device() -> None:
    harness = Harness(make_limits())
    harness.submit(make_request("a", (1, 2), eos=frozenset({9, 4}), stop_token_ids=(7,), max_tokens=3))
    harness.submit(make_request("b", (1, 2), eos=frozenset({9, 4}), ignore_eos=True, max_tokens=3))
    plan = harness.launch()
    assert plan is not None
    assert [(start.stop_ids, start.prompt_len) for start in plan.starts] == [((7, 4, 9), 2), ((), 2)]


@pytest.mark.parametrize(
    ("params", "eos", "reason"),
    [
        (dict(logit_bias={96: 1.0, 97: 1.0}), 1, "logit_bias names token 97; the vocabulary has 0 to 96"),
        (dict(stop_token_ids=(-1,)), 1, "stop_token_ids names token -1"),
        (dict(min_tokens=1), MAX_LISTED + 1, "min_tokens can hold back 512 tokens, not 513"),
    ],
)
def test_parameters_that_do_not_fit_the_model_are_refused(
    params: dict[str, object], eos: int, reason: str
) -> None:
    harness = Harness(make_limits())
    with pytest.raises(Rejected, match=reason):
        harness.submit(make_request("a", (1, 2), eos=frozenset(range(eos)), **params))
