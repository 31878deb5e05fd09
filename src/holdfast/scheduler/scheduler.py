"""What runs next: every step, each request absorbs some of the tokens that it knows and has not absorbed.

The caller plans and launches steps, and collects their results in the same order; how many it keeps in flight
is its own affair. Results of requests that have ended meanwhile are dropped by (row, generation).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..cache import Admission, CacheManager
from ..config import Limits
from ..ids import Row
from ..plan import RowResult, RowStart, RowWork, StepPlan, StepResult
from ..request import FinishReason, Rejected, Request
from .admission import refusal
from .builder import PlanBuilder
from .chunking import chunk_len, cut_align
from .finish import finish_reason, most_tokens
from .queue import WaitingQueue

Publish = Callable[[Request], int | None]
"""The line at which a request, about to run on from `planned`, should leave a checkpoint behind."""


def publish_nothing(request: Request) -> None:
    return None


@dataclass
class Seat:
    """A request and the row it has."""

    request: Request
    row: Row
    generation: int
    leaving: bool = False
    """Pre-empted, and sitting out until none of its steps is in flight: then all its tokens are known."""


@dataclass
class Counters:
    submitted: int = 0
    rejected: int = 0
    finished: int = 0
    cancelled: int = 0
    preempted: int = 0
    steps: int = 0
    planned_tokens: int = 0


class Scheduler:
    def __init__(
        self,
        limits: Limits,
        cache: CacheManager,
        clock: Callable[[], float] = time.monotonic,
        publish: Publish = publish_nothing,
    ) -> None:
        self.counters = Counters()
        self._limits = limits
        self._cache = cache
        self._clock = clock
        self._publish = publish
        self._requests: dict[str, Request] = {}  # all that have not ended
        self._waiting = WaitingQueue()
        self._running: dict[Row, Seat] = {}
        self._cancelled: list[Request] = []

    # --- requests come and go ---

    def submit(self, request: Request) -> None:
        """Raises Rejected, with a reason, if the request can never run."""
        reason = refusal(request, self._limits)
        if reason is None and request.id in self._requests:
            reason = "a request with this id is still running; use another id"
        if reason is not None:
            self.counters.rejected += 1
            raise Rejected(request.id, reason)
        request.arrival = self.counters.submitted
        request.metrics.arrived = self._clock()
        self.counters.submitted += 1
        self._requests[request.id] = request
        self._waiting.push(request)

    def cancel(self, request_id: str) -> bool:
        """End a request with the tokens it has; `take_cancelled` reports it. False if it has ended."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self.finish(request_id, FinishReason.CANCELLED)
        self._cancelled.append(request)
        return True

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request for a reason that its tokens do not show. The caller knows: nothing is reported."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        if not self._waiting.discard(request_id):
            self._leave_row(next(s for s in self._running.values() if s.request is request))
        self._end(request, reason)
        return True

    def take_cancelled(self) -> list[Request]:
        """Those cancelled since this was last asked: a request that waits has no step to be reported with."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    @property
    def has_work(self) -> bool:
        """False once every request has been reported and every step collected."""
        return bool(self._requests or self._cancelled) or self._cache.any_in_flight

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    # --- down: the next step ---

    def plan(self) -> StepPlan | None:
        """The next step, which the caller must launch; None if nothing can run until a step is collected."""
        plan = PlanBuilder(self.counters.steps + 1, self._limits.max_num_batched_tokens)
        self._continue_running(plan)
        self._admit_waiting(plan)
        if not plan.work:
            return None
        self._cache.launched(plan.step, plan.work)
        self.counters.steps += 1
        self.counters.planned_tokens += self._limits.max_num_batched_tokens - plan.budget
        return plan.build()

    def _continue_running(self, plan: PlanBuilder) -> None:
        seats = self._in_turn()
        windows = sum(s.request.todo for s in seats if self._is_window(s.request))
        for seat in seats:
            if not plan.budget:
                return
            if seat.leaving or seat.row not in self._running:
                continue  # pre-empted a moment ago, for one that came before it
            # The first may be a long run, with every window still to come: it leaves them their tokens.
            ahead = windows if seat is seats[0] and not self._is_window(seat.request) else 0
            count = self._chunk(seat.request, max(1, plan.budget - ahead))
            if self._make_room(seat, seat.request.planned + count, plan):
                self._add_work(seat, count, plan)

    def _in_turn(self) -> list[Seat]:
        """Windows before long runs, for latency; the oldest before all, so that it always gets on."""
        seats = [s for s in self._running.values() if not self._is_going(s)]
        oldest = min((s.request.order for s in seats), default=None)

        def turn(seat: Seat) -> tuple[bool, tuple[int, int]]:
            order = seat.request.order
            return (order != oldest and not self._is_window(seat.request), order)

        return sorted(seats, key=turn)

    def _admit_waiting(self, plan: PlanBuilder) -> None:
        """Strictly in order: a large request at the head is not overtaken for ever by small ones."""
        while plan.budget and (request := self._waiting.head):
            # A page to spare, so that the first page a running request needs does not pre-empt the newcomer.
            admission = self._cache.admit(request, headroom=1 if self._running else 0)
            if admission is None:
                return
            self._waiting.pop()
            seat = self._start(request, admission, plan)
            self._add_work(seat, self._chunk(request, plan.budget), plan)

    def _start(self, request: Request, admission: Admission, plan: PlanBuilder) -> Seat:
        match = admission.match
        plan.starts.append(
            RowStart(
                row=admission.row,
                generation=admission.generation,
                tokens=tuple(request.tokens),
                own_slot=admission.own_slot,
                read_slot=match.slot,
                base=match.resumable_len,
                params=request.params,
                seed=request.seed,
                prompt_len=len(request.prompt),
                stop_ids=request.stop_ids,
                scored=len(request.prompt_logprobs),
            )
        )
        plan.pages += admission.pages
        request.planned = match.resumable_len
        if request.metrics.first_scheduled is None:
            request.metrics.first_scheduled = self._clock()
            request.metrics.cached_tokens = match.resumable_len
        seat = Seat(request, admission.row, admission.generation)
        self._running[seat.row] = seat
        return seat

    def _add_work(self, seat: Seat, count: int, plan: PlanBuilder) -> None:
        request = seat.request
        self._offer_slot(seat, count, plan)
        sample = count == request.todo
        plan.add(RowWork(seat.row, seat.generation, count, sample, position=request.planned))
        request.planned += count
        request.pending += sample

    def _offer_slot(self, seat: Seat, count: int, plan: PlanBuilder) -> None:
        """Grant a slot for the line that the request should publish, if it should and there is one."""
        line = self._publish(seat.request)
        grant = None if line is None else self._cache.grant(seat.row, line)
        if grant is None:
            return
        position, grid = seat.request.planned, self._limits.fold_every
        # A long run reads on from its last line; those before it are only passed.
        passed = count > self._limits.max_window and position < grant.line < (position + count) // grid * grid
        (plan.exports if passed else plan.grants).append(grant)

    def _chunk(self, request: Request, budget: int) -> int:
        return chunk_len(request.planned, request.known, budget, cut_align(self._limits))

    def _is_window(self, request: Request) -> bool:
        return request.todo <= self._limits.max_window

    # --- when pages run out ---

    def _make_room(self, seat: Seat, length: int, plan: PlanBuilder) -> bool:
        """Pages for `length` tokens, pre-empting whoever came last; False if the seat has to sit out."""
        while (pages := self._cache.extend(seat.row, length)) is None:
            victim = self._preempt(plan)
            if victim is None or victim is seat:
                return False
        plan.pages += pages
        return True

    def _preempt(self, plan: PlanBuilder) -> Seat | None:
        """Send the last in order back to the queue. None if pages are on their way already, or are so now."""
        if self._cache.returning or any(map(self._is_going, self._running.values())):
            return None
        victim = max(self._running.values(), key=lambda s: s.request.order)
        if victim.row in plan.work or self._cache.in_flight(victim.row):
            victim.leaving = True
            return None
        self._requeue(victim)
        return victim

    def _is_going(self, seat: Seat) -> bool:
        """All it holds comes back with a step in flight: it was pre-empted, or has only to hear of its end."""
        return seat.leaving or seat.request.known >= most_tokens(seat.request, self._limits.max_model_len)

    def _requeue(self, seat: Seat) -> None:
        self._leave_row(seat)
        seat.request.planned = 0
        seat.request.metrics.preemptions += 1
        self.counters.preempted += 1
        self._waiting.push(seat.request)

    def _leave_row(self, seat: Seat) -> None:
        del self._running[seat.row]
        self._cache.release(seat.row)

    # --- up: what a step brought ---

    def collect(self, result: StepResult) -> list[Request]:
        """Take in the oldest step in flight. Returns the requests that got tokens, some of them finished."""
        self._cache.commit(result)
        self._cache.collected(result.step)
        advanced = []
        for row_result in result.rows:
            seat = self._running.get(row_result.row)
            if seat is None or seat.generation != row_result.generation:
                continue  # ended while this step was in flight
            seat.request.prompt_logprobs += row_result.prompt_logprobs
            if row_result.tokens:
                self._take_tokens(seat, row_result)
                advanced.append(seat.request)
        for seat in [s for s in self._running.values() if s.leaving and not self._cache.in_flight(s.row)]:
            self._requeue(seat)
        return advanced

    def _take_tokens(self, seat: Seat, result: RowResult) -> None:
        request = seat.request
        request.pending -= 1
        if request.metrics.first_token is None:
            request.metrics.first_token = self._clock()
        for token in result.tokens:
            request.tokens.append(token)
            if reason := finish_reason(request, self._limits.max_model_len):
                self._leave_row(seat)
                self._end(request, reason)
                break
        request.logprobs += result.logprobs[: len(request.output) - len(request.logprobs)]

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.id]
        self.counters.cancelled += reason is FinishReason.CANCELLED
        self.counters.finished += reason is not FinishReason.CANCELLED
        request.finish_reason = reason
        request.pending = 0
        request.metrics.finished = self._clock()
