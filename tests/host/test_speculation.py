"""Windows with drafts: what the host plans before it knows how many were accepted, and what it makes of it then."""

from __future__ import annotations

import pytest

from holdfast.ids import Row
from holdfast.plan import NO_CHOICE, StepPlan, Window
from holdfast.request import Acceptance, FinishReason, Request, TokenLogprob
from holdfast.scheduler.depth import Depth, draft_room

from .harness import Harness, make_limits, make_request
from .results import RowResult, step_result

LIMITS = make_limits(fold_every=4, max_window=4, max_model_len=40, max_num_batched_tokens=40)


def planned(harness: Harness) -> StepPlan:
    plan = harness.scheduler.plan()
    assert plan is not None
    return plan


def answer(harness: Harness, plan: StepPlan, position: int, *tokens: int, proposed: int = 3) -> list[Request]:
    (work,) = plan.work
    scored = tuple(TokenLogprob(token, -1.0) for token in tokens)
    row = RowResult(work.row, 1, position, tokens, scored, window=work.window, proposed=proposed)
    return harness.scheduler.collect(step_result(plan.step, (row,)))


def begun(**params: object) -> tuple[Harness, Request]:
    """A request whose prompt of 3 is absorbed, and whose first token is known."""
    harness = Harness(LIMITS)
    request = make_request("a", (1, 2, 3), logprobs=0, **params)
    harness.submit(request)
    first = planned(harness)
    assert [w.window for w in first.work] == [Window(drafts=0)], "nobody has made drafts yet"
    answer(harness, first, 3, 7, proposed=0)
    return harness, request


def test_a_window_counts_its_bonus() -> None:
    assert [w.most_chosen for w in (Window(3), Window(), NO_CHOICE)] == [4, 1, 0]


def test_a_window_is_the_last_token_and_its_drafts() -> None:
    harness, request = begun(max_tokens=20)
    plan = planned(harness)
    (work,) = plan.work
    assert (work.tokens, work.window, plan.positions, plan.uncertain) == (4, Window(3), (3,), (0,))
    assert (request.planned, request.pending, request.uncertain, request.todo) == (7, 4, 3, 1)


def test_the_next_window_is_planned_before_this_one_is_known() -> None:
    harness, request = begun(max_tokens=20)
    first = planned(harness)
    second = planned(harness)
    (work,) = second.work
    assert (work.tokens, second.positions, second.uncertain) == (4, (7,), (3,)), "it stands at 4 to 7"
    answer(harness, first, 5, 8, 9)  # one of three accepted
    assert request.output == [7, 8, 9]
    assert (request.planned, request.pending, request.uncertain, request.todo) == (9, 4, 3, 1)
    answer(harness, second, 9, 10, 11, 12, 13)
    assert (request.planned, request.pending, request.uncertain, request.todo) == (9, 0, 0, 1)
    assert request.output == [7, 8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(("max_tokens", "drafts"), [(2, 0), (3, 1), (4, 2), (5, 3), (9, 3)])
def test_drafts_end_where_the_answer_must(max_tokens: int, drafts: int) -> None:
    harness, _ = begun(max_tokens=max_tokens)
    (work,) = planned(harness).work
    assert work.window == Window(drafts)


def test_a_row_that_may_have_all_its_tokens_waits_to_hear_of_it() -> None:
    harness, request = begun(max_tokens=5)
    first = planned(harness)
    assert harness.scheduler.plan() is None, "if all drafts are accepted it has its five tokens"
    answer(harness, first, 5, 8, 9)
    assert planned(harness).work[0].window == Window(1)
    assert request.finish_reason is None


@pytest.mark.parametrize(("budget", "drafts"), [(1, 0), (2, 1), (3, 2)])
def test_a_budget_is_for_drafts_too(budget: int, drafts: int) -> None:
    harness, _ = begun(max_tokens=20)
    harness.scheduler._limits = make_limits(fold_every=4, max_window=4, max_num_batched_tokens=budget)
    (work,) = planned(harness).work
    assert work.window == Window(drafts)


@pytest.mark.parametrize(
    ("budget", "drafts"), [(12, [3, 3, 3]), (8, [3, 2, 0]), (6, [3, 0, 0]), (3, [0, 0, 0])]
)
def test_no_draft_takes_the_place_of_a_token_that_is_known(budget: int, drafts: list[int]) -> None:
    """Of three rows each gets on; the drafts that the budget has left go to the oldest."""
    harness = Harness(make_limits(fold_every=4, max_window=4, max_num_batched_tokens=12))
    harness.submit(*(make_request(id_, (token, 5), max_tokens=16) for token, id_ in enumerate("abc", 1)))
    harness.turn()
    harness.scheduler._limits = make_limits(fold_every=4, max_window=4, max_num_batched_tokens=budget)
    assert [work.window.drafts for work in planned(harness).work] == drafts


def test_what_follows_a_stop_is_dropped_with_its_log_probabilities() -> None:
    harness, request = begun(max_tokens=20, stop_token_ids=(9,))
    first, second = planned(harness), planned(harness)
    assert answer(harness, first, 7, 8, 9, 10, 11) == [request]
    assert request.output == [7, 8, 9] and request.finish_reason is FinishReason.STOP
    assert [entry.token_id for entry in request.logprobs] == [7, 8, 9]
    assert answer(harness, second, 11, 12, 13, 14, 15) == []
    assert request.output == [7, 8, 9]
    harness.drain()


def test_nothing_after_a_stop_is_published() -> None:
    """Of eight tokens absorbed, two whole pages, the request keeps five."""
    harness = Harness(LIMITS, prefix_reuse=True)
    request = make_request("a", (1, 2, 3), stop_token_ids=(9,))
    harness.submit(request)
    plans = [planned(harness) for _ in range(3)]
    for plan, position, tokens in zip(plans, (3, 7, 8), ((7,), (9, 10, 11, 12), (13,)), strict=True):
        answer(harness, plan, position, *tokens)
    assert request.output == [7, 9]
    assert harness.cache.match(make_request("b", (1, 2, 3, 7, 9))).kv_len == 4
    assert harness.cache.match(make_request("c", (1, 2, 3, 7, 9, 10, 11, 12, 13))).kv_len == 4


def test_nothing_after_an_end_that_only_the_text_shows_is_published() -> None:
    """A stop string in the middle of a window, with the next one in flight."""
    harness = Harness(LIMITS, prefix_reuse=True)
    request = make_request("a", (1, 2, 3))
    harness.submit(request)
    plans = [planned(harness) for _ in range(3)]
    answer(harness, plans[0], 3, 7, proposed=0)
    answer(harness, plans[1], 7, 8, 9, 10, 11)
    assert harness.scheduler.finish("a", FinishReason.STOP, kept=2)
    assert request.output == [7, 8]
    answer(harness, plans[2], 11, 12, 13, 14, 15)
    assert harness.cache.match(make_request("b", (1, 2, 3, 7, 8, 9, 10, 11, 12))).kv_len == 4


def test_acceptance_is_counted_for_each_request_and_for_all() -> None:
    harness, request = begun(max_tokens=20)
    answer(harness, planned(harness), 5, 8, 9)
    answer(harness, planned(harness), 9, 10, 11, 12, 13)
    answer(harness, planned(harness), 10, 14, proposed=0)
    wanted = Acceptance(drafts=6, by_accepted={1: 1, 3: 1})
    assert request.metrics.speculation == harness.scheduler.speculation == wanted
    assert (wanted.windows, wanted.accepted, wanted.accepted_at) == (2, 4, [2, 1, 1])
    assert wanted.accept_length == 3.0 and Acceptance().accept_length == 1.0
    other = make_request("b", (4, 5, 6))
    harness.submit(other)
    other.metrics.speculation.count(drafts=2, accepted=1)
    for id_ in "ab":
        everybody = harness.scheduler.speculation
        assert everybody == Acceptance(drafts=8, by_accepted={1: 2, 3: 1}), "whether they have ended or not"
        harness.cancel(id_)
    assert harness.scheduler.speculation == everybody and wanted == request.metrics.speculation


def test_a_row_that_was_resumed_has_no_drafts_at_first() -> None:
    harness, request = begun(max_tokens=20)
    answer(harness, planned(harness), 5, 8, 9)
    harness.scheduler._requeue(harness.scheduler._running[Row(1)])
    first = planned(harness)
    assert [w.window for w in first.work] == [Window()]
    (work,) = planned(harness).work
    assert work.window == Window(3) and request.uncertain == 3


def test_draft_room() -> None:
    assert draft_room(known=10, most_tokens=20, budget=5) == 5
    assert draft_room(known=10, most_tokens=14, budget=5) == 3
    assert draft_room(known=10, most_tokens=10, budget=5) < 0


class FirstOnly(Depth):
    """Drafts are made in the first steps, and never again."""

    def decide(self) -> int:
        self.depth = 3 if sum(self.steps.get(3, {}).values()) < 4 else 0
        return self.depth


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_row_without_drafts_may_still_be_uncertain(depth: int) -> None:
    """The fake objects if a row stands elsewhere than the plan says."""
    harness = Harness(LIMITS, depth, drafts=FirstOnly(3))
    harness.submit(*(make_request(id_, (1, 2, 3, n), max_tokens=12) for n, id_ in enumerate("ab")))
    harness.drain()
    assert harness.scheduler.speculation.windows
    for request in harness.ended.values():
        harness.check_answer(request)
