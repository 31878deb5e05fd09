from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.cache import Policy
from holdfast.config import Limits
from holdfast.ids import Row
from holdfast.plan import StepPlan
from holdfast.request import FinishReason, Rejected, TokenLogprob

from .fake import expected_output
from .harness import Harness, make_limits, make_request
from .results import RowResult, step_result


def prompt(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def planned(harness: Harness) -> StepPlan:
    plan = harness.launch()
    assert plan is not None
    return plan


def shape(plan: StepPlan) -> list[tuple[int, int, bool]]:
    return [(work.row, work.tokens, work.sample) for work in plan.work]


# --- one request ---


def test_a_prompt_then_a_token_a_step() -> None:
    harness = Harness(make_limits())
    harness.submit(make_request("a", prompt(5), max_tokens=3))
    harness.drain()
    assert [shape(plan) for plan in harness.plans] == [[(1, 5, True)], [(1, 1, True)], [(1, 1, True)]]
    assert [position for plan in harness.plans for position in plan.positions] == [0, 5, 6]
    (start,) = harness.plans[0].starts
    assert (start.tokens, start.generation, start.own_slot, start.read_slot, start.base) == (
        prompt(5),
        1,
        1,
        0,
        0,
    )


@pytest.mark.parametrize("depth", range(4))
def test_no_step_is_planned_past_the_end(depth: int) -> None:
    harness = Harness(make_limits(), depth)
    harness.submit(make_request("a", prompt(5), max_tokens=3))
    harness.drain()
    assert len(harness.plans) == 3
    harness = Harness(make_limits(max_model_len=8), depth)
    harness.submit(make_request("a", prompt(5), max_tokens=300))
    harness.drain()
    assert len(harness.plans) == 3
    assert len(harness.ended["a"].tokens) == 8


@pytest.mark.parametrize("depth", range(4))
def test_an_end_of_text_is_seen_late_and_the_rest_is_dropped(depth: int) -> None:
    limits = make_limits()
    answer = expected_output(prompt(5), make_request("a", ()).params, frozenset(), limits)
    eos = frozenset({answer[2]})
    assert answer.index(answer[2]) == 2
    harness = Harness(limits, depth)
    harness.submit(make_request("a", prompt(5), eos=eos))
    harness.drain()
    assert harness.ended["a"].output == answer[:3]
    assert harness.ended["a"].finish_reason is FinishReason.STOP
    assert len(harness.plans) == 3 + depth


def test_a_result_of_an_earlier_tenant_is_dropped() -> None:
    harness = Harness(make_limits())
    first, second = make_request("a", prompt(3)), make_request("b", prompt(3))
    for request in (first, second):
        harness.submit(request)
        assert planned(harness)
        if request is first:
            harness.cancel("a")
            harness.collect()
    stale = RowResult(Row(1), 1, 3, (7,))
    assert harness.scheduler.collect(step_result(2, (stale,))) == []
    assert (first.output, second.output, second.pending) == ([], [], 1)


def test_a_long_prompt_is_cut_to_the_budget_and_samples_at_its_end() -> None:
    harness = Harness(make_limits(max_model_len=300, max_num_batched_tokens=100, num_pages=80))
    harness.submit(make_request("a", (1,) * 200, max_tokens=1))
    harness.drain()
    assert [shape(plan)[0][1:] for plan in harness.plans] == [(64, False), (64, False), (72, True)]


def test_times_and_counts() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=4))
    request = make_request("a", prompt(6), max_tokens=2)
    harness.submit(request)
    harness.drain()
    metrics = request.metrics
    assert (metrics.arrived, metrics.first_scheduled, metrics.first_token, metrics.finished) == (0, 1, 2, 3)
    counters = harness.scheduler.counters
    assert (counters.submitted, counters.finished, counters.steps, counters.planned_tokens) == (1, 1, 3, 7)


def test_logprobs_stop_where_the_tokens_stop() -> None:
    harness = Harness(make_limits())
    request = make_request("a", prompt(3), eos=frozenset({8}), logprobs=0)
    harness.submit(request)
    plan = harness.scheduler.plan()
    assert plan is not None
    tokens = (7, 8, 9)
    row = RowResult(Row(1), 1, 3, tokens, tuple(TokenLogprob(t, -1.0) for t in tokens))
    assert harness.scheduler.collect(step_result(plan.step, (row,))) == [request]
    assert request.output == [7, 8]
    assert [entry.token_id for entry in request.logprobs] == [7, 8]


# --- several requests in a step ---


def test_windows_come_before_runs_and_runs_before_newcomers() -> None:
    harness = Harness(make_limits(max_num_seqs=4, max_num_batched_tokens=8))
    harness.submit(make_request("a", prompt(4)))
    harness.turn()
    harness.submit(make_request("b", prompt(15)))
    harness.turn()  # b absorbs 7
    harness.submit(make_request("c", prompt(3)))
    assert shape(planned(harness)) == [(1, 1, True), (2, 7, False)]
    harness.collect()
    assert shape(planned(harness)) == [(1, 1, True), (2, 1, True), (3, 3, True)]


def test_an_older_run_leaves_the_windows_their_tokens_but_is_never_starved() -> None:
    harness = Harness(make_limits(max_num_seqs=3, max_num_batched_tokens=3))
    for id_, priority in (("a", 1), ("b", 1)):
        harness.submit(make_request(id_, prompt(1), priority=priority))
    harness.turn()
    harness.submit(make_request("urgent", prompt(9), priority=0))
    harness.turn()
    assert shape(harness.plans[-1]) == [(1, 1, True), (2, 1, True), (3, 1, False)]
    harness.turn()
    assert shape(harness.plans[-1]) == [(3, 1, False), (1, 1, True), (2, 1, True)]


def test_with_a_budget_of_one_the_oldest_goes_first() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=1))
    harness.submit(make_request("a", prompt(2), max_tokens=3), make_request("b", prompt(3), max_tokens=2))
    harness.drain()
    assert [(work.row, work.generation) for plan in harness.plans for work in plan.work] == [(1, 1)] * 4 + [
        (1, 2)
    ] * 4


def test_priority_decides_who_is_admitted() -> None:
    harness = Harness(make_limits(max_num_seqs=1))
    for id_, priority in (("late", 1), ("a", 0), ("b", 0), ("now", -1)):
        harness.submit(make_request(id_, prompt(3), priority=priority, max_tokens=2))
    harness.drain()
    assert list(harness.ended) == ["now", "a", "b", "late"]


def test_small_requests_do_not_overtake_a_large_one() -> None:
    harness = Harness(make_limits(num_pages=7))
    harness.submit(make_request("a", prompt(12)))
    harness.turn()
    harness.submit(make_request("large", prompt(15)), make_request("small", prompt(1)))
    harness.turn()
    assert (harness.scheduler.num_running, harness.scheduler.num_waiting) == (1, 2)
    harness.drain()
    assert next(iter(harness.ended)) == "a"


def test_a_newcomer_needs_a_page_to_spare_unless_alone() -> None:
    harness = Harness(make_limits(num_pages=7))
    harness.submit(make_request("a", prompt(15)), make_request("b", prompt(12)))
    assert len(planned(harness).work) == 1  # four pages and three: none to spare
    harness = Harness(make_limits(num_pages=7))
    harness.submit(make_request("a", prompt(15)), make_request("b", prompt(8)))
    assert len(planned(harness).starts) == 2
    harness = Harness(make_limits(num_pages=6, max_model_len=23, max_num_batched_tokens=32))
    harness.submit(make_request("a", prompt(22)))  # all there are
    harness.drain()


# --- when pages run out ---


def crowded(depth: int) -> Harness:
    """Two requests that fit together, until the elder needs another page: the younger has to go."""
    harness = Harness(make_limits(num_pages=7, max_num_batched_tokens=32), depth)
    harness.submit(
        make_request("a", prompt(10), max_tokens=12), make_request("b", prompt(11, 40), max_tokens=8)
    )
    return harness


def turn_until_preempted(harness: Harness) -> None:
    while not harness.scheduler.counters.preempted:
        harness.turn()
        assert harness.turns < 30, "nobody was pre-empted"


@pytest.mark.parametrize("depth", range(4))
def test_the_youngest_is_preempted_and_keeps_its_tokens(depth: int) -> None:
    harness = crowded(depth)
    turn_until_preempted(harness)
    victim = harness.scheduler._waiting.peek()
    assert victim is not None and victim.id == "b"
    kept = list(victim.tokens)
    assert len(kept) > 10 and victim.planned == victim.pending == 0
    harness.drain()
    restart = [start for plan in harness.plans for start in plan.starts][-1]
    assert restart.tokens == tuple(kept)
    assert list(harness.ended) == ["a", "b"]
    assert harness.ended["b"].metrics.preemptions == 1 and harness.ended["a"].metrics.preemptions == 0


def test_a_victim_sits_out_while_its_step_is_in_flight() -> None:
    harness = crowded(depth=1)
    for _ in range(20):
        harness.launch()
        if any(seat.leaving for seat in harness.scheduler._running.values()):
            break
        if len(harness.device.in_flight) > 1:
            harness.collect()
    (victim,) = (seat for seat in harness.scheduler._running.values() if seat.leaving)
    assert victim.request.id == "b"
    while harness.scheduler.num_waiting == 0:
        held = harness.cache.check().pages.held
        plan = harness.launch()
        assert plan is None or victim.row not in {work.row for work in plan.work}
        assert harness.cache.check().pages.held == held, "nothing of the victim is used before it has gone"
        harness.collect()
    harness.drain()
    assert victim.request.metrics.preemptions == 1


def test_the_youngest_may_be_the_one_that_needs_the_page() -> None:
    harness = Harness(make_limits(num_pages=7, max_num_batched_tokens=32))
    harness.submit(
        make_request("a", prompt(11), max_tokens=12), make_request("b", prompt(10, 40), max_tokens=8)
    )
    turn_until_preempted(harness)
    assert [seat.request.id for seat in harness.scheduler._running.values()] == ["a"]
    harness.drain()


def test_pages_on_their_way_are_waited_for_and_nobody_is_preempted() -> None:
    harness = Harness(make_limits(num_pages=9, max_num_batched_tokens=32), depth=1)
    harness.submit(
        *(make_request(id_, prompt(n), max_tokens=9) for id_, n in (("a", 11), ("b", 5), ("c", 9)))
    )
    for _ in range(4):
        harness.turn()  # all pages are taken, and b fills its last one
    harness.cancel("c")
    assert harness.cache.returning
    assert [work.row for work in planned(harness).work] == [1]
    harness.drain()
    assert harness.scheduler.counters.preempted == 0


def test_nobody_is_preempted_while_another_has_only_to_hear_of_its_end() -> None:
    harness = Harness(make_limits(num_pages=7, max_num_batched_tokens=32), depth=1)
    harness.submit(make_request("a", prompt(11), max_tokens=3), make_request("b", prompt(10), max_tokens=9))
    for _ in range(3):
        harness.turn()
    assert harness.launch() is None, "b waits for the pages of a, whose last token is in flight"
    harness.drain()
    assert harness.scheduler.counters.preempted == 0


def test_one_request_can_have_every_page() -> None:
    limits = make_limits(max_num_seqs=2)
    limits = make_limits(max_num_seqs=2, num_pages=limits.pages_per_row)
    harness = Harness(limits, depth=1)
    for id_ in "abc":
        harness.submit(make_request(id_, prompt(10, ord(id_) - 96), max_tokens=100))
    harness.drain()
    assert [len(request.tokens) for request in harness.ended.values()] == [24, 24, 24]


# --- leaving early ---


def test_cancelling_a_request_that_waits() -> None:
    harness = Harness(make_limits(max_num_seqs=1))
    harness.submit(make_request("a", prompt(3), max_tokens=2), make_request("b", prompt(3)))
    harness.turn()
    assert harness.cancel("b")
    assert not harness.cancel("b")
    assert [request.id for request in harness.scheduler.take_cancelled()] == ["b"]
    assert harness.scheduler.take_cancelled() == []
    harness.drain()


def test_cancelling_the_only_request_leaves_it_to_be_reported() -> None:
    harness = Harness(make_limits())
    request = make_request("a", prompt(3))
    harness.submit(request)
    harness.cancel("a")
    assert harness.scheduler.has_work
    assert harness.scheduler.plan() is None
    assert harness.scheduler.take_cancelled() == [request]
    assert request.finish_reason is FinishReason.CANCELLED and request.output == []
    assert not harness.scheduler.has_work


def test_cancelling_while_steps_are_in_flight() -> None:
    harness = Harness(make_limits(), depth=2)
    request = make_request("a", prompt(3))
    harness.submit(request)
    for _ in range(3):
        harness.launch()
    assert request.pending == 3
    assert harness.cancel("a")
    assert harness.scheduler.has_work, "its steps are still to be collected"
    assert harness.collect() == harness.collect() == harness.collect() == []
    assert (request.output, request.pending) == ([], 0)
    assert harness.scheduler.take_cancelled() == [request]
    assert not harness.scheduler.has_work
    harness.check_idle()


def test_cancelling_what_has_ended_or_never_was() -> None:
    harness = Harness(make_limits())
    harness.submit(make_request("a", prompt(3), max_tokens=1))
    harness.drain()
    assert not harness.cancel("a")
    assert not harness.cancel("nobody")
    assert harness.scheduler.take_cancelled() == []


# --- at the door ---


def test_a_rejected_request_leaves_no_trace() -> None:
    harness = Harness(make_limits())
    with pytest.raises(Rejected, match="empty"):
        harness.submit(make_request("a", ()))
    assert harness.scheduler.counters.rejected == 1
    assert not harness.scheduler.has_work and harness.scheduler.plan() is None


def test_an_id_is_used_once_at_a_time() -> None:
    harness = Harness(make_limits())
    harness.submit(make_request("a", prompt(3), max_tokens=1))
    with pytest.raises(Rejected, match="another id"):
        harness.submit(make_request("a", prompt(3)))
    harness.drain()
    harness.ended.clear()
    harness.submit(make_request("a", prompt(3), max_tokens=1))
    harness.drain()


# --- checkpoints ---


@dataclass(frozen=True)
class AtLines(Policy):
    """Only these lines of a prompt, and of an answer those that are asked for."""

    lines: tuple[int, ...] = ()
    answers: bool = False

    def prompt_lines(self, *, start: int, kv_len: int, length: int, page_size: int) -> tuple[int, ...]:
        return tuple(line for line in self.lines if start < line <= length)

    def answer_line(self, *, position: int, end: int, page_size: int) -> int | None:
        line = super().answer_line(position=position, end=end, page_size=page_size)
        return line if self.answers else None


def reusing(limits: Limits | None = None, depth: int = 0, *lines: int, answers: bool = False) -> Harness:
    policy = AtLines(lines=lines, answers=answers, worth_waiting=4)
    return Harness(limits or make_limits(), depth, prefix_reuse=True, policy=policy)


def test_a_run_exports_the_lines_it_reaches_several_at_once() -> None:
    harness = reusing(None, 0, 4, 8)
    harness.submit(make_request("a", prompt(9), max_tokens=1))
    harness.drain()
    first = harness.plans[0]
    assert ([g.line for g in first.exports], first.grants) == ([4, 8], ())
    assert harness.cache.counters.published == 2
    assert harness.cache.match(make_request("b", prompt(9))).resumable_len == 8
    assert harness.cache.match(make_request("b", prompt(6))).resumable_len == 4


def test_windows_are_granted_a_slot_when_they_reach_a_line() -> None:
    harness = reusing(make_limits(max_num_batched_tokens=1), 1, 4)
    harness.submit(make_request("a", prompt(9), max_tokens=1))
    harness.drain()
    assert [plan.positions[0] for plan in harness.plans if plan.grants] == [3]
    assert harness.cache.counters.published == 2, "and its own slot, when it went"


def test_a_run_is_cut_where_only_a_cut_leaves_a_state() -> None:
    limits = make_limits(
        page_size=16, fold_every=16, max_model_len=300, max_num_batched_tokens=256, num_pages=40
    )
    harness = reusing(limits, 0, 80, 128)
    harness.submit(make_request("a", tuple(i % 90 for i in range(200)), max_tokens=1))
    harness.drain()
    work = [(plan.positions[0], plan.work[0].tokens) for plan in harness.plans]
    assert work == [(0, 80), (80, 120)]
    assert [grant.line for plan in harness.plans for grant in plan.exports] == [80, 128]


@pytest.mark.parametrize("depth", range(4))
def test_a_second_request_resumes_where_the_first_left_a_checkpoint(depth: int) -> None:
    harness = reusing(None, depth, 8)
    harness.submit(make_request("a", prompt(11), max_tokens=4))
    harness.drain()
    again = make_request("b", prompt(11), max_tokens=4)
    harness.submit(again)
    harness.drain()
    start = harness.plans[-4].starts[0]
    assert (start.base, start.read_slot != start.own_slot) == (8, True)
    assert shape(harness.plans[-4]) == [(1, 3, True)]
    assert again.metrics.cached_tokens == 8
    assert again.metrics.cache_reason == "resumed at 8, as far as the prompt was computed before"


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("length", range(5, 13))
def test_an_ended_request_leaves_its_whole_conversation_behind(length: int, depth: int) -> None:
    """Whatever the residue: if it ends on a line, a step of no tokens folds it."""
    harness = reusing(None, depth, answers=True)
    request = make_request("a", prompt(3), max_tokens=length - 3)
    harness.submit(request)
    harness.drain()
    absorbed = length - 1
    follow_up = make_request("b", (*request.tokens, 50, 51))
    assert harness.cache.match(follow_up).resumable_len == absorbed // 4 * 4
    empty = [plan for plan in harness.plans if any(work.tokens == 0 for work in plan.work)]
    assert len(empty) == (absorbed % 4 == 0)


def test_nobody_waits_for_a_row_that_only_folds() -> None:
    harness = reusing(make_limits(max_num_seqs=1, num_slots=4), answers=True)
    harness.submit(make_request("a", prompt(3), max_tokens=2), make_request("b", prompt(3, 50), max_tokens=1))
    harness.drain()
    assert [work.tokens for plan in harness.plans for work in plan.work] == [3, 1, 3]


def test_a_preempted_request_hands_over_its_state_and_resumes_from_it() -> None:
    harness = reusing(make_limits(num_pages=7), 0, 8, answers=True)
    harness.submit(
        make_request("a", prompt(10), max_tokens=9), make_request("b", prompt(11, 40), max_tokens=8)
    )
    harness.drain()
    restart = [start for plan in harness.plans for start in plan.starts][-1]
    assert harness.ended["b"].metrics.preemptions == 1
    assert len(restart.tokens) > 10 and restart.base >= 8, "all but the page that the other took"
    assert harness.ended["b"].metrics.cached_tokens == 0
    assert harness.cache.counters.resumed_after_preemption == restart.base


# --- one prefix, computed once ---


@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("slots", [6, 0])
def test_those_who_arrive_together_compute_a_common_prefix_once(depth: int, slots: int) -> None:
    limits = make_limits(max_num_seqs=3, max_num_batched_tokens=64, num_slots=slots)
    harness = reusing(limits, depth)
    stem = prompt(12)
    requests = [make_request(id_, (*stem, *prompt(3, 50 + i)), max_tokens=2) for i, id_ in enumerate("abc")]
    harness.submit(*requests)
    harness.drain()
    assert [r.metrics.cached_tokens for r in requests] == [0, 12, 12]
    assert harness.cache.counters.waited == 2
    assert sum(plan.num_tokens for plan in harness.plans) == 15 + 3 + 3 + 3


def test_a_prefix_that_is_being_computed_is_asked_for_on_the_way() -> None:
    harness = reusing(make_limits(max_num_seqs=2, max_num_batched_tokens=4), 1)
    first = make_request("a", prompt(20), max_tokens=1)
    harness.submit(first)
    harness.turn()
    second = make_request("b", (*prompt(16), 90, 91), max_tokens=1)
    harness.submit(second)
    harness.drain()
    assert second.metrics.cached_tokens == 16


def test_one_who_waits_for_a_prefix_is_overtaken_but_keeps_its_row() -> None:
    harness = reusing(make_limits(max_num_seqs=3, max_num_batched_tokens=20), 0, 8)
    harness.submit(
        make_request("a", prompt(11), max_tokens=3),
        make_request("b", prompt(11), max_tokens=3),
        make_request("c", prompt(3, 50), max_tokens=9),
        make_request("d", prompt(3, 60), max_tokens=9),
    )
    plan = planned(harness)
    assert [start.tokens[0] for start in plan.starts] == [1, 50], "the third row is kept for b"
    harness.collect()
    assert planned(harness).starts[0].base == 8
    harness.drain()


@pytest.mark.parametrize("leave", ["cancel", "lose"])
def test_one_who_waited_in_vain_sets_out_itself(leave: str) -> None:
    harness = reusing(make_limits(max_num_seqs=2), 1, 8)
    harness.loses = harness.device.loses = lambda grant: leave == "lose"
    second = make_request("b", prompt(11), max_tokens=3)
    harness.submit(make_request("a", prompt(11), max_tokens=9), second)
    harness.turn()
    assert harness.scheduler.num_waiting == 1
    if leave == "cancel":
        harness.cancel("a")
    harness.drain()
    assert harness.ended["b"].finish_reason is FinishReason.LENGTH


def test_nobody_waits_where_no_checkpoint_can_be_had() -> None:
    """A full checkpoint pool neither fails nor delays a request."""
    limits = make_limits(max_num_seqs=3, num_slots=3, max_num_batched_tokens=64)
    harness = reusing(limits, 0, 8)
    requests = [make_request(id_, prompt(11), max_tokens=3) for id_ in "abc"]
    harness.submit(*requests)
    assert len(planned(harness).starts) == 3
    harness.drain()
    assert harness.cache.counters.waited == 0 and harness.cache.counters.skipped == 3


def test_a_scored_prompt_waits_for_nobody() -> None:
    harness = reusing(make_limits(max_num_batched_tokens=64), 0, 8)
    harness.submit(make_request("a", prompt(11)), make_request("b", prompt(11), prompt_logprobs=0))
    assert len(planned(harness).starts) == 2
