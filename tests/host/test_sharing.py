"""Who waits for whom, decided from numbers: the cache here says what the test wants it to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.cache import CacheCounters, Policy
from holdfast.cache.radix import Match
from holdfast.config import Limits
from holdfast.ids import Row, Slot
from holdfast.plan import NO_CHOICE, Grant, RowWork
from holdfast.request import Request
from holdfast.scheduler.builder import PlanBuilder
from holdfast.scheduler.seat import Seat
from holdfast.scheduler.sharing import Sharing

from .harness import make_limits, make_request

WORTH, ROW, WINDOW = 8, Row(2), 2
LIMITS: Limits = make_limits(max_window=WINDOW)


@dataclass
class SaidCache:
    """Of the one running request, whose row is ROW."""

    shared: int = 40
    """Tokens it has in common with whoever asks."""
    promised: list[int] = field(default_factory=list)
    published: int = 0
    prefix_reuse: bool = True
    recurrent: bool = True
    may_promise: bool = True
    slots: tuple[Slot, ...] = (Slot(5),)
    """What there is for an export."""
    policy: Policy = field(default_factory=lambda: Policy(worth_waiting=WORTH, per_path=1))
    counters: CacheCounters = field(default_factory=CacheCounters)

    @property
    def keeps_checkpoints(self) -> bool:
        return self.prefix_reuse and self.recurrent

    def common_len(self, row: Row, request: Request) -> int:
        assert row == ROW and request.id == "waits"
        return self.shared

    def promised_lines(self, row: Row) -> list[int]:
        assert row == ROW
        return self.promised

    def published_len(self, row: Row) -> int:
        assert row == ROW
        return self.published

    def export(self, row: Row, line: int) -> Grant | None:
        return Grant(row, 1, self.slots[0], line) if self.slots else None


@dataclass
class Scene:
    """One request runs and another may wait for it."""

    cache: SaidCache
    planned: int = 0
    lines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.sharing = Sharing(LIMITS, self.cache)  # type: ignore[arg-type]
        runs = make_request("runs", tuple(range(1, 20)))
        runs.planned = self.planned
        self.seat = Seat(runs, ROW, 1, 10_000, self.lines)
        self.waits = make_request("waits", tuple(range(1, 20)))
        self.plan = PlanBuilder(step=1, budget=64)
        self.running = {ROW: self.seat}

    def awaits(self, resumable: int = 0) -> bool:
        match = SaidMatch(resumable)
        return self.sharing.awaits(self.waits, match, self.running, self.plan)  # type: ignore[arg-type]

    def takes(self, position: int, tokens: int) -> None:
        """The running request is in the plan already."""
        self.plan.add(RowWork(ROW, 1, tokens, NO_CHOICE), position)
        self.seat.request.planned = position + tokens


@dataclass(frozen=True)
class SaidMatch:
    resumable_len: int


def scene(planned: int = 0, lines: tuple[int, ...] = (), **cache: Any) -> Scene:
    return Scene(SaidCache(**cache), planned, lines)


def test_what_is_said_has_the_names_of_the_real_match() -> None:
    assert hasattr(Match, "resumable_len")


# --- is there somebody to wait for? ---


def test_one_waits_for_a_prefix_that_another_will_leave() -> None:
    it = scene(lines=(40,))
    assert it.awaits()
    assert it.sharing.awaited == {"waits": it.seat} and it.cache.counters.waited == 1
    assert it.awaits(), "and goes on waiting"
    assert it.cache.counters.waited == 1, "which is counted once"
    it.sharing.forget("waits")
    assert it.sharing.awaited == {}
    it.sharing.forget("waits")


def test_nobody_waits_without_reuse_nor_with_a_prompt_to_score() -> None:
    assert not scene(lines=(40,), prefix_reuse=False).awaits()
    it = scene(lines=(40,))
    it.waits = make_request("waits", tuple(range(1, 20)), prompt_logprobs=1)
    assert not it.awaits()


def test_one_waits_for_the_same_other_only_while_that_runs() -> None:
    it = scene(lines=(40,))
    assert it.awaits()
    successor = Seat(it.seat.request, ROW, 2, 10_000, (40,))
    it.running = {ROW: successor}
    assert not it.awaits(), "another tenant of the row would do, but one has waited once"
    it.running = {}
    assert not it.awaits()


def test_one_that_is_leaving_is_not_waited_for() -> None:
    it = scene(lines=(40,))
    it.seat.leaving = True
    assert not it.awaits()
    it = scene(shared=1, lines=(1,))
    it.seat.leaving = True
    it.sharing._worth = 0
    it.cache.may_promise = False
    assert it.awaits(resumable=0) and not it.awaits(resumable=1), "what it has in common then is nothing"


@pytest.mark.parametrize(
    ("shared", "resumable", "waits"), [(8, 0, True), (7, 0, False), (20, 12, True), (20, 13, False)]
)
def test_the_other_must_have_enough_more_than_the_cache(shared: int, resumable: int, waits: bool) -> None:
    it = scene(shared=shared, lines=(shared,), may_promise=False)
    assert it.awaits(resumable) is waits


@pytest.mark.parametrize(("published", "waits"), [(39, True), (40, False), (41, False)])
def test_without_state_pages_are_waited_for_until_they_are_there(published: int, waits: bool) -> None:
    assert scene(recurrent=False, published=published).awaits() is waits


# --- where will it leave a checkpoint? ---


@pytest.mark.parametrize(("line", "waits"), [(8, True), (7, False), (40, True), (41, False)])
@pytest.mark.parametrize("promised", [True, False])
def test_a_line_within_what_is_shared_is_enough(line: int, waits: bool, promised: bool) -> None:
    it = scene(lines=() if promised else (line,), promised=[line] if promised else [], may_promise=False)
    assert it.awaits() is waits


def test_no_line_at_all_is_no_reason_to_wait() -> None:
    assert not scene(may_promise=False).awaits()
    it = scene(shared=1, may_promise=False)
    it.sharing._worth = 1
    assert not it.awaits(), "no line is line 0, not 1"


@pytest.mark.parametrize(("line", "asked"), [(32, True), (33, False)])
def test_a_deeper_line_is_asked_for_if_it_is_worth_it(line: int, asked: bool) -> None:
    it = scene(lines=(line,))
    assert it.awaits()
    assert it.seat.lines == ((line, 40) if asked else (line,))


def test_a_line_ahead_of_the_row_is_put_on_its_list_in_order_and_once() -> None:
    it = scene(planned=16, lines=(48, 24))
    assert it.sharing._ask_for(it.seat, 40, it.plan) and it.seat.lines == (24, 40, 48)
    assert it.sharing._ask_for(it.seat, 40, it.plan) and it.seat.lines == (24, 40, 48)
    assert it.plan.exports == []


def test_a_line_that_the_row_has_passed_cannot_be_had() -> None:
    for planned in (40, 41):
        it = scene(planned=planned)
        assert not it.sharing._ask_for(it.seat, 40, it.plan)
        assert it.seat.lines == () and it.plan.exports == []


def test_a_line_that_this_step_s_run_reaches_is_exported() -> None:
    it = scene()
    it.plan.exports.append(before := Grant(Row(1), 1, Slot(3), 64))
    it.takes(position=0, tokens=130)
    assert it.sharing._ask_for(it.seat, 64, it.plan)
    assert it.plan.exports == [before, Grant(ROW, 1, Slot(5), 64)] and it.seat.lines == ()


def test_the_end_of_this_step_s_run_is_reached_and_not_ahead() -> None:
    it = scene()
    it.takes(position=0, tokens=64)
    assert it.sharing._ask_for(it.seat, 64, it.plan)
    assert it.plan.exports == [Grant(ROW, 1, Slot(5), 64)]


def test_no_slot_no_promise() -> None:
    it = scene(slots=())
    it.takes(position=0, tokens=130)
    assert not it.sharing._ask_for(it.seat, 64, it.plan) and it.plan.exports == []
    it = scene(may_promise=False)
    assert not it.sharing._ask_for(it.seat, 40, it.plan) and it.seat.lines == ()


def test_a_run_has_no_state_inside_a_whole_block_and_a_window_exports_none() -> None:
    it = scene()
    it.takes(position=0, tokens=130)
    assert not it.sharing._ask_for(it.seat, 16, it.plan), "the chunk form passes it"
    it = scene()
    it.takes(position=64, tokens=WINDOW)
    assert not it.sharing._ask_for(it.seat, 66, it.plan)
    it = scene()
    it.takes(position=62, tokens=WINDOW + 1)
    assert it.sharing._ask_for(it.seat, 64, it.plan), "one token more is a run"


def test_what_lies_before_this_step_s_run_cannot_be_had() -> None:
    it = scene()
    it.takes(position=64, tokens=64)
    assert not it.sharing._ask_for(it.seat, 64, it.plan) and it.plan.exports == []


# --- where a waiting request will part from one that sets out ---


@pytest.mark.parametrize(("planned", "wanted"), [(32, True), (33, False)])
def test_a_branch_is_planned_if_enough_is_still_to_come(planned: int, wanted: bool) -> None:
    it = scene(planned=planned, lines=(16,))
    it.sharing.plan_branch(it.seat, it.waits)
    assert it.seat.lines == ((16, 40) if wanted else (16,))


@pytest.mark.parametrize("cache", [{"prefix_reuse": False}, {"recurrent": False}])
def test_no_branch_is_planned_where_checkpoints_are_of_no_use(cache: dict[str, bool]) -> None:
    it = scene(**cache)
    it.sharing.plan_branch(it.seat, it.waits)
    assert it.seat.lines == ()


@pytest.mark.parametrize(("lines", "wanted"), [((1, 2), True), ((1, 2, 3), False)])
def test_a_row_has_only_so_many_branches(lines: tuple[int, ...], wanted: bool) -> None:
    it = scene(lines=lines)
    it.sharing.plan_branch(it.seat, it.waits)
    assert (40 in it.seat.lines) is wanted


def test_how_many_is_up_to_the_policy() -> None:
    it = scene(lines=(1, 2, 3, 4), policy=Policy(worth_waiting=WORTH, per_path=2))
    it.sharing.plan_branch(it.seat, it.waits)
    assert 40 in it.seat.lines
