"""What a plan tells the device of a request, and what the scheduler counts and takes in, field by field."""

from __future__ import annotations

import pytest

from holdfast.ids import Page, Row, Slot
from holdfast.params import MAX_LISTED
from holdfast.plan import (
    NO_CHOICE,
    Grant,
    PageMap,
    RowStart,
    RowWork,
    StepPlan,
    Window,
)
from holdfast.request import Rejected, Request, SamplingParams, TokenLogprob
from holdfast.scheduler.builder import PlanBuilder
from holdfast.scheduler.seat import Seat

from .harness import Harness, make_limits, make_request
from .results import RowResult, step_result


def scored(*tokens: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, -float(token)) for token in tokens)


def planned(harness: Harness) -> StepPlan:
    plan = harness.scheduler.plan()
    assert plan is not None
    return plan


def test_a_plan_is_all_that_was_put_into_it() -> None:
    start = RowStart(Row(1), 1, (1,), Slot(1), Slot(0), 0, SamplingParams(), 0)
    work = [RowWork(Row(row), 1, 3, NO_CHOICE) for row in (2, 1)]
    pages = PageMap(Row(1), 0, Page(4))
    grant, export = (Grant(Row(1), 1, Slot(slot), 8) for slot in (2, 3))
    builder = PlanBuilder(step=7, budget=10, propose=3)
    for place, each in enumerate(work):
        builder.add(each, 10 + place, place)
    builder.starts.append(start)
    builder.pages.append(pages)
    builder.grants.append(grant)
    builder.exports.append(export)
    assert builder.budget == 4
    assert builder.build((Slot(5),), (Page(6),)) == StepPlan(
        step=7,
        starts=(start,),
        pages=(pages,),
        grants=(grant,),
        exports=(export,),
        work=tuple(work),
        positions=(10, 11),
        uncertain=(0, 1),
        freed_slots=(Slot(5),),
        freed_pages=(Page(6),),
        propose=3,
    )


def test_a_start_carries_the_whole_request() -> None:
    params = SamplingParams(temperature=0.5, stop_token_ids=(3,))
    request = Request("a", (1, 2, 4), params, seed=42, eos_token_ids=frozenset({9}))
    harness = Harness(make_limits())
    harness.submit(request)
    (start,) = planned(harness).starts
    assert start.params is params and start.seed == 42
    assert (start.tokens, start.prompt_len, start.stop_ids, start.scored) == ((1, 2, 4), 3, (3, 9), 0)


def test_prompt_scores_are_gathered_over_chunks_and_a_restart_says_how_many_there_are() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=3))
    request = make_request("a", (1, 2, 3, 4, 5), prompt_logprobs=0, max_tokens=4)
    harness.submit(request)
    for step, (position, tokens) in enumerate(((3, (2, 3)), (5, (4, 5))), 1):
        planned(harness)
        row = RowResult(Row(1), 1, position, (), prompt_logprobs=scored(*tokens))
        harness.scheduler.collect(step_result(step, (row,)))
    assert [entry.token_id for entry in request.prompt_logprobs] == [2, 3, 4, 5]
    for times in (1, 2):
        harness.scheduler._requeue(harness.scheduler._running[Row(1)])
        assert request.metrics.preemptions == times
        (start,) = planned(harness).starts
        assert start.scored == 4
        harness.scheduler.collect(step_result(2 + times, ()))


def test_answers_are_gathered_over_steps() -> None:
    harness = Harness(make_limits())
    request = make_request("a", (1, 2), logprobs=0, max_tokens=5)
    harness.submit(request)
    for step, token in enumerate((7, 8), 1):
        planned(harness)
        row = RowResult(Row(1), 1, 1 + step, (token,), scored(token))
        assert harness.scheduler.collect(step_result(step, (row,))) == [request]
    assert request.output == [7, 8] and request.logprobs == list(scored(7, 8))


def test_counters() -> None:
    harness = Harness(make_limits(max_num_seqs=3, num_pages=6, num_slots=3))
    requests = [make_request(id_, (1, 2, 3, i), max_tokens=16) for i, id_ in enumerate("abcde")]
    harness.submit(*requests)
    for _ in range(3):
        harness.turn()
    harness.cancel("d")
    harness.cancel("e")
    with pytest.raises(Rejected):
        harness.submit(make_request("f", ()))
    harness.drain()
    counters = harness.scheduler.counters
    assert (counters.submitted, counters.finished, counters.cancelled, counters.rejected) == (5, 3, 2, 1)
    told = [request.metrics.preemptions for request in requests]
    assert counters.preempted == sum(told) == 2
    assert counters.steps == len(harness.plans)
    assert counters.planned_tokens == sum(plan.num_tokens for plan in harness.plans)


def test_the_first_token_of_a_vocabulary_may_stop_an_answer() -> None:
    harness = Harness(make_limits())
    harness.submit(make_request("a", (1, 2), stop_token_ids=(0,), logit_bias={0: 1.0}))
    for params in ({"stop_token_ids": (-1,)}, {"logit_bias": {97: 1.0}}):
        with pytest.raises(Rejected, match="the vocabulary has 0 to 96"):
            harness.submit(make_request("b", (1, 2), **params))


def test_a_step_that_only_folds_samples_nothing() -> None:
    harness = Harness(make_limits(max_num_seqs=2), prefix_reuse=True)
    harness.submit(make_request("a", (1, 2, 3), max_tokens=6))
    harness.drain()
    folds = [work for plan in harness.plans for work in plan.work if not work.tokens]
    assert folds and all(work.sample is False for work in folds)


def test_logprobs_stop_with_the_answer_after_others_were_gathered() -> None:
    harness = Harness(make_limits())
    request = make_request("a", (1, 2), logprobs=0, eos=frozenset({8}))
    harness.submit(request)
    for step, tokens in enumerate(((7,), (5, 8, 9, 9, 9)), 1):
        planned(harness)
        row = RowResult(Row(1), 1, 1 + step, tokens, scored(*tokens), window=Window(len(tokens) - 1))
        harness.scheduler.collect(step_result(step, (row,)))
    assert request.output == [7, 5, 8] and request.logprobs == list(scored(7, 5, 8))


def test_a_run_that_goes_on_is_cut_at_a_line_that_it_would_only_pass() -> None:
    harness = Harness(make_limits(max_model_len=300, page_size=16, num_pages=40, max_num_batched_tokens=200))
    request = make_request("a", tuple(range(1, 90)) * 2)
    request.planned = 64
    for lines, count in (((80,), 16), ((128,), 114), ((), 114)):
        assert harness.scheduler._chunk(Seat(request, Row(1), 1, 300, lines), 200) == count


def test_the_end_of_a_prompt_is_no_line_of_its_answer() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=1), prefix_reuse=True)
    harness.submit(make_request("a", tuple(range(1, 9)), max_tokens=6))
    harness.drain()
    ends = [plan.positions[0] + 1 for plan in harness.plans if plan.grants]
    assert [grant.line for plan in harness.plans for grant in plan.grants] == ends == [4, 12]


def test_who_waited_for_whom_is_forgotten_when_the_wait_is_over() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=64), prefix_reuse=True)
    harness.submit(*(make_request(id_, tuple(range(1, 14)), max_tokens=9) for id_ in "abc"))
    harness.turn()
    awaited = harness.scheduler._sharing.awaited
    assert set(awaited) == {"b", "c"}
    harness.cancel("c")
    assert set(awaited) == {"b"}
    harness.turn()
    assert harness.scheduler.num_running == 2 and not awaited
    harness.drain()


def test_the_oldest_comes_first_then_windows_then_runs() -> None:
    harness = Harness(make_limits())
    scheduler = harness.scheduler
    for row, (id_, todo) in enumerate((("old run", 9), ("run", 8), ("window", 1)), 1):
        request = make_request(id_, tuple(range(1, 10)), max_tokens=9)
        request.arrival, request.planned = row, 9 - todo
        scheduler._in_order.append(Seat(request, Row(row), 1, 300))
    assert [seat.request.id for seat in scheduler._in_turn()[0]] == ["old run", "window", "run"]


def test_those_after_a_pre_empted_row_are_not_passed_over() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=64, num_pages=40))
    scheduler = harness.scheduler
    long = make_request("b", tuple(range(1, 21)))
    harness.submit(make_request("a", (1, 2), max_tokens=9), long, make_request("c", (3,), max_tokens=9))
    harness.turn()
    long.planned = 12  # as if it had been cut: a run, behind the windows a and c
    seats = {seat.request.id: seat for seat in scheduler._running.values()}
    seats["a"].settled_until = 0  # as if it needed a page
    make_room = scheduler._make_room

    def send_away(seat: Seat, length: int, plan: PlanBuilder) -> bool:
        seats["c"].leave()
        return make_room(seat, length, plan)

    scheduler._make_room = send_away  # type: ignore[method-assign]
    plan = PlanBuilder(step=99, budget=9)
    scheduler._continue_running(plan)
    assert set(plan.work) == {seats["a"].row, seats["b"].row}


def test_a_refusal_is_told_in_full_and_counted() -> None:
    harness = Harness(make_limits())
    harness.submit(make_request("a", (1,)))
    told = {
        "a": ((2,), "a request with this id is still running; use another id"),
        "b": ((), "the prompt is empty; give at least one token"),
        "c": (
            (1, 97),
            "token 97 at place 1 of the prompt is not one of the 97 of the vocabulary; "
            "use the tokenizer that belongs to the model",
        ),
    }
    for id_, (prompt, reason) in told.items():
        with pytest.raises(Rejected) as refused:
            harness.submit(make_request(id_, prompt))
        assert (refused.value.request_id, refused.value.reason) == (id_, reason)
    assert harness.scheduler.counters.rejected == 3


def test_as_many_stop_tokens_as_can_be_held_back() -> None:
    harness = Harness(make_limits(vocab_size=MAX_LISTED + 2))
    stops = tuple(range(MAX_LISTED))
    harness.submit(make_request("a", (1,), min_tokens=1, stop_token_ids=stops))
    with pytest.raises(Rejected, match=f"can hold back {MAX_LISTED} tokens, not {MAX_LISTED + 1}"):
        harness.submit(
            make_request("b", (1,), min_tokens=1, stop_token_ids=stops, eos=frozenset({MAX_LISTED + 1}))
        )


@pytest.mark.parametrize("depth", [0, 1])
def test_a_row_that_only_decodes_asks_for_something_only_where_a_page_ends(depth: int) -> None:
    harness = Harness(make_limits(max_model_len=80, page_size=16, num_pages=6), depth, prefix_reuse=True)
    asked: list[int] = []
    extend = harness.cache.extend

    def note(row: Row, length: int) -> tuple[PageMap, ...] | None:
        asked.append(length)
        return extend(row, length)

    harness.cache.extend = note  # type: ignore[method-assign]
    harness.submit(make_request("a", (1, 2, 3, 4, 5), max_tokens=70))
    harness.drain()
    decoding = [work for plan in harness.plans[1:] for work in plan.work if work.tokens]
    assert len(decoding) == 69 and all(work is decoding[0] for work in decoding)
    assert [position for plan in harness.plans[1:] for position in plan.positions] == [*range(5, 74)]
    assert asked == [16, 17, 32, 33, 48, 49, 64, 65], "where a line is reached, and behind it"
    assert [grant.line for plan in harness.plans for grant in plan.grants] == [16, 32, 48, 64]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_row_with_drafts_asks_for_something_only_where_a_page_ends(depth: int, reuse: bool) -> None:
    limits = make_limits(max_model_len=400, max_window=4, fold_every=4, page_size=32, num_pages=16)
    harness, asked = Harness(limits, depth, reuse), 0
    extend = harness.cache.extend

    def note(row: Row, length: int) -> tuple[PageMap, ...] | None:
        nonlocal asked
        asked += 1
        return extend(row, length)

    harness.cache.extend = note  # type: ignore[method-assign]
    harness.submit(make_request("a", (1, 2, 3, 4, 5), max_tokens=380))
    harness.drain()
    mapped = [page for plan in harness.plans for page in plan.pages]
    assert [page.ordinal for page in mapped] == [*range(len(mapped))] and len(mapped) == 385 // 32 + 1
    near_the_end = (1 + depth) * limits.max_window  # steps of one token each, if every draft is wrong
    most = (2 if reuse else 1) * len(mapped) + near_the_end
    assert len(harness.plans) > 120 and asked <= most, "for pages, for lines that are kept, and at its end"
