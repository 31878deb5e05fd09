"""What runs next: every step, each request absorbs some of the tokens that it knows and has not absorbed.

The caller plans and launches steps, and collects their results in the same order; how many it keeps in flight
is its own affair. Results of requests that have ended meanwhile are dropped by (row, generation).
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from ..cache import Admission, CacheManager, CacheStats
from ..config import Limits, run_reaches
from ..corruption import Finding, StateCorruption
from ..ids import Row
from ..plan import NO_CHOICE, RowStart, RowWork, StepPlan, StepResult, Window
from ..request import Acceptance, FinishReason, Rejected, Request, SpeculationStats
from .admission import refusal
from .builder import PlanBuilder
from .chunking import chunk_len, cut_align
from .depth import Depth, draft_room
from .finish import finish_reason, most_tokens
from .queue import WaitingQueue
from .seat import Seat
from .sharing import Sharing
from .watch import LiveRequest, live_requests


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
        depth: Depth | None = None,
    ) -> None:
        self.counters = Counters()
        self._past = Acceptance()  # of requests that have ended
        self._depth = depth or Depth(limits.max_drafts)
        self._limits = limits
        self._cache = cache
        self._clock = clock
        self._requests: dict[str, Request] = {}  # all that have not ended
        self._waiting = WaitingQueue()
        self._sharing = Sharing(limits, cache)
        self._running: dict[Row, Seat] = {}
        self._in_order: list[Seat] = []  # the same, the oldest first
        self._ended: list[Seat] = []  # whose last line is still to be folded
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
        for seat in self._running.values():
            self._sharing.plan_branch(seat, request)

    def cancel(self, request_id: str) -> bool:
        """End a request with the tokens it has; `take_cancelled` reports it. False if it has ended."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self.finish(request_id, FinishReason.CANCELLED)
        self._cancelled.append(request)
        return True

    def finish(self, request_id: str, reason: FinishReason, *, kept: int | None = None) -> bool:
        """End a request for a reason that its tokens do not show. The caller knows: nothing is reported.

        kept  so many tokens of its answer; what came after them is published to nobody. None: all
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        if kept is not None:
            del request.tokens[len(request.prompt) + kept :]
        if not self._waiting.discard(request_id):
            self._finish_row(next(s for s in self._running.values() if s.request is request))
        self._end(request, reason)
        return True

    def take_cancelled(self) -> list[Request]:
        """Those cancelled since this was last asked: a request that waits has no step to be reported with."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def cache_stats(self) -> CacheStats:
        return self._cache.stats()

    @property
    def speculation(self) -> Acceptance:
        """Of all requests so far."""
        total = Acceptance()
        for found in (self._past, *(request.metrics.speculation for request in self._requests.values())):
            total.add(found)
        return total

    def speculation_stats(self) -> SpeculationStats:
        """As it is now."""
        return SpeculationStats(
            **vars(self.speculation),
            depth=self._depth.depth,
            why=self._depth.why(),
            steps={depth: dict(reasons) for depth, reasons in self._depth.steps.items()},
        )

    def live_requests(self) -> list[LiveRequest]:
        """As they are now."""
        seats, awaited = self._running.values(), self._sharing.awaited
        return list(live_requests(seats, self._waiting, awaited, self._cache, self._clock()))

    def reset_cache(self) -> None:
        """No later request resumes from what was computed so far."""
        self._cache.reset()

    @property
    def has_work(self) -> bool:
        """False once every request has been reported and every step collected."""
        return bool(self._requests or self._cancelled or self._ended) or self._cache.any_in_flight

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    # --- down: the next step ---

    def plan(self) -> StepPlan | None:
        """The next step, which the caller must launch; None if nothing can run until a step is collected."""
        if joining := min(len(self._waiting), self._cache.spare_rows):
            self._depth.expect(len(self._running) + joining, joining=joining)
        plan = PlanBuilder(
            self.counters.steps + 1,
            self._limits.max_num_batched_tokens,
            propose=self._depth.decide(),
        )
        folding = self._fold_ended(plan)
        self._continue_running(plan)
        self._admit_waiting(plan)
        if not plan.work:
            return None
        self._cache.launched(plan.step, plan.work.keys())
        for seat in folding:
            self._cache.release(seat.row)
        self.counters.steps += 1
        self.counters.planned_tokens += self._limits.max_num_batched_tokens - plan.budget
        built = plan.build(*self._cache.take_freed())
        self._depth.planned(built)
        return built

    def think(self) -> None:
        """To be called while the device computes: what the next plan need not wait for then."""
        self._depth.think()

    def _continue_running(self, plan: PlanBuilder) -> None:
        seats, owed = self._in_turn()
        propose, share = plan.propose, self._depth.share
        for place, seat in enumerate(seats):
            request, drafts = seat.request, seat.drafted
            planned = request.planned
            end = planned + 1 + drafts
            settled = end <= (seat.drafting_until if propose else seat.settled_until)
            if settled and drafts <= plan.budget - owed and not seat.lines:  # as most do
                plan.add(seat.next, planned, request.uncertain)
                request.planned = end
                request.pending += 1 + drafts
                owed -= 1
                if propose or drafts:
                    request.uncertain += drafts
                    mine = share(seat.row)
                    if mine != drafts or mine > propose:
                        seat.draft(min(propose, mine))
                continue
            if not plan.budget:
                return
            if seat.leaving:
                continue  # pre-empted a moment ago, for one that came before it
            budget, todo = plan.budget, request.todo
            if todo <= self._limits.max_window:
                owed -= todo
            elif place == 0:  # a long run, with every window still to come: it leaves them their tokens
                windows = [s for s in seats if self._is_window(s.request)]
                budget = max(1, budget - sum(s.request.todo + self._drafts(s, budget) for s in windows))
            count = self._chunk(seat, budget)
            window = self._window(seat, count, budget - owed)
            if self._make_room(seat, planned + count + self._beyond(window, plan), plan):
                self._add_work(seat, count, window, plan)

    def _in_turn(self) -> tuple[list[Seat], int]:
        """Windows before long runs, for latency; the oldest before all, so that it always gets on. And the tokens of
        windows that are known: one that somebody knows comes before another's drafts."""
        seats = [*self._in_order]  # some may leave while the others are planned
        others = [s for s in seats if s.request.planned >= s.settled_until]
        if any(map(_sits_out, others)):
            seats = [s for s in seats if not _sits_out(s)]
            others = [s for s in others if not _sits_out(s)]
        windows = [s.request.todo for s in others if self._is_window(s.request)]
        owed = len(seats) - len(others) + sum(windows)
        if len(windows) < len(others):
            seats = sorted(seats, key=lambda s: s is not seats[0] and not self._is_window(s.request))
        return seats, owed

    def _admit_waiting(self, plan: PlanBuilder) -> None:
        """In order: a large request is not overtaken for ever by small ones. One that lets another compute their
        common prefix first may be overtaken, but nobody takes the row that it will need."""
        passed = 0
        while plan.budget and self._cache.spare_rows > passed and (request := self._waiting.peek(passed)):
            match = self._cache.match(request)
            if self._sharing.awaits(request, match, self._running, plan):
                passed += 1
                continue
            # A page to spare, so that the first page a running request needs does not pre-empt the newcomer.
            admission = self._cache.admit(request, headroom=1 if self._running else 0, match=match)
            if admission is None:
                return
            self._waiting.pop(passed)
            seat = self._start(request, admission, plan)
            count = self._chunk(seat, plan.budget)
            self._add_work(seat, count, self._window(seat, count, plan.budget), plan)

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
            request.metrics.cache_reason = match.reason
        lines = self._cache.policy.prompt_lines(
            start=match.resumable_len,
            kv_len=match.kv_len,
            length=request.known,
            page_size=self._limits.page_size,
        )
        most = most_tokens(request, self._limits.max_model_len)
        seat = Seat(request, admission.row, admission.generation, most, lines)
        self._running[seat.row] = seat
        insort(self._in_order, seat, key=attrgetter("order"))
        self._sharing.forget(request.id)
        for place in range(self._limits.max_num_seqs):
            if (other := self._waiting.peek(place)) is None:
                break
            self._sharing.plan_branch(seat, other)
        return seat

    def _add_work(self, seat: Seat, count: int, window: Window, plan: PlanBuilder) -> None:
        """`count` tokens that are known, and the drafts that follow them."""
        request, tokens = seat.request, count + window.drafts
        self._offer_slots(seat, tokens, plan)
        if count == 1 and window.bonus:
            work = seat.window(window.drafts)
        else:
            work = RowWork(seat.row, seat.generation, tokens, window)
        plan.add(work, request.planned, request.uncertain)
        if window.bonus:
            seat.draft(min(plan.propose, self._depth.share(seat.row)))
        request.planned += tokens
        request.pending += window.most_chosen
        request.uncertain += window.drafts
        self._settle(seat, window)

    def _settle(self, seat: Seat, window: Window) -> None:
        """Until where later steps need not ask for anything."""
        seat.settled_until = seat.drafting_until = 0
        if window.bonus:
            held, page_size = self._cache.room(seat.row), self._limits.page_size
            seat.settled_until = min(seat.most_tokens - 1, held)
            if self._cache.keeps_checkpoints:
                line = (seat.request.planned // page_size + 1) * page_size
                seat.settled_until = min(line - 1, seat.settled_until)
            seat.drafting_until = min(seat.settled_until, held - self._limits.drafting_room)

    def _window(self, seat: Seat, count: int, budget: int) -> Window:
        """What is chosen after `count` known tokens, within a budget for them and their drafts."""
        if count < seat.request.todo:
            return NO_CHOICE
        return seat.window(self._drafts(seat, budget)).window

    def _drafts(self, seat: Seat, budget: int) -> int:
        """Drafts follow a token that was chosen in this row; so there is one known token before them, that one."""
        request = seat.request
        if not (seat.drafted and request.todo == 1):
            return 0
        room = draft_room(known=request.known, most_tokens=seat.most_tokens, budget=budget - 1)
        return max(0, min(seat.drafted, room))

    def _offer_slots(self, seat: Seat, count: int, plan: PlanBuilder) -> None:
        """Slots for the lines that these tokens reach and that are worth a checkpoint, as far as there are any."""
        start, end = seat.request.planned, seat.request.planned + count
        if count == 1 and end % self._limits.page_size and not seat.lines:
            return  # as most do
        lines = self._lines_reached(seat, end) if seat.lines else ()
        if count > self._limits.max_window:
            plan.exports += filter(None, (self._cache.export(seat.row, line) for line in lines))
            return
        line = next(iter(lines), None)
        if line is None and end > len(seat.request.prompt):
            page_size = self._limits.page_size
            line = self._cache.policy.answer_line(position=start, end=end, page_size=page_size)
        if line is not None and (grant := self._cache.grant(seat.row, line)):
            plan.grants.append(grant)

    @staticmethod
    def _lines_reached(seat: Seat, end: int) -> tuple[int, ...]:
        """Take those up to `end` off the list."""
        lines, seat.lines = seat.lines, tuple(line for line in seat.lines if line > end)
        return tuple(line for line in lines if seat.request.planned < line <= end)

    def _chunk(self, seat: Seat, budget: int) -> int:
        done = seat.request.planned
        if seat.request.todo == 1:
            return 1
        count = chunk_len(done, seat.request.known, budget, cut_align(self._limits))
        for line in seat.lines:
            if done < line < done + count and not run_reaches(line, done, done + count):
                return line - done
        return count

    def _is_window(self, request: Request) -> bool:
        return request.todo <= self._limits.max_window

    # --- when pages run out ---

    def _beyond(self, window: Window, plan: PlanBuilder) -> int:
        """Of KV, what is kept beyond the last token known: drafts', and a drafter's of those that it makes next."""
        return window.drafts + (self._room(plan) if window.bonus else 0)

    def _room(self, plan: PlanBuilder) -> int:
        """For the most drafts there may be, if any are made: some drafters always make so many."""
        return self._limits.drafting_room if plan.propose else 0

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
        if self._cache.returning or self._ended or any(map(self._is_going, self._running.values())):
            return None
        victim = max(self._running.values(), key=lambda s: s.request.order)
        if victim.row in plan.work or self._cache.in_flight(victim.row):
            victim.leave()
            return None
        self._requeue(victim)
        return victim

    def _is_going(self, seat: Seat) -> bool:
        """All it holds comes back with a step in flight: it was pre-empted, or has only to hear of its end."""
        return seat.leaving or seat.request.known - seat.request.uncertain >= seat.most_tokens

    def _requeue(self, seat: Seat) -> None:
        seat.leave()
        self._leave_row(seat)
        seat.request.planned = 0
        seat.request.metrics.preemptions += 1
        self.counters.preempted += 1
        self._waiting.push(seat.request)

    def _leave_row(self, seat: Seat) -> None:
        self._stop_running(seat)
        self._cache.release(seat.row)

    def _stop_running(self, seat: Seat) -> None:
        del self._running[seat.row]
        self._in_order.remove(seat)

    # --- what an ended request leaves behind ---

    def _finish_row(self, seat: Seat) -> None:
        """A row that holds a grant waits for its last step: it may stand on the line that it was granted for."""
        if self._cache.has_grant(seat.row):
            self._stop_running(seat)
            self._ended.append(seat)
        else:
            self._leave_row(seat)

    def _fold_ended(self, plan: PlanBuilder) -> list[Seat]:
        """A step of no tokens for each that stands on its line, unless somebody waits for the row."""
        folding, in_flight = [], []
        for seat in self._ended:
            if self._cache.in_flight(seat.row):
                in_flight.append(seat)
            elif self._cache.awaits_fold(seat.row) and not self._waiting:
                plan.add(RowWork(seat.row, seat.generation, 0, NO_CHOICE), self._cache.position(seat.row))
                folding.append(seat)
            else:
                self._cache.release(seat.row)
        self._ended = in_flight
        return folding

    # --- up: what a step brought ---

    def collect(self, result: StepResult) -> list[Request]:
        """Take in the oldest step in flight. Returns the requests that got tokens, some of them finished."""
        advanced = self._end_corrupted(result.findings)  # before anything of theirs is published
        self._cache.commit(result)
        self._cache.collected(result.step)
        self._depth.collected(result)
        running, scores, prompt_scores = self._running, result.logprobs, result.prompt_logprobs
        rows = zip(result.work, result.tokens, result.proposed, strict=True)
        for (row, generation, _, window), tokens, proposed in rows:
            seat = running.get(row)
            if seat is None or seat.generation != generation:
                continue  # ended while this step was in flight
            request = seat.request
            if prompt_scores:
                request.prompt_logprobs += prompt_scores.get(row, ())
            if not tokens:
                continue
            known, metrics = request.tokens, request.metrics
            drafts, chosen = window.drafts, len(tokens)
            request.pending -= 1 + drafts
            if drafts:  # what was planned at most, and what it came to
                request.uncertain -= drafts
                request.planned -= 1 + drafts - chosen
                if proposed:
                    metrics.speculation.count(proposed, chosen - 1)
            if metrics.first_token is None:
                metrics.first_token = self._clock()
            if seat.stops.isdisjoint(tokens) and len(known) + chosen < seat.most_tokens:
                known += tokens  # as most do
            else:
                self._take_tokens(seat, tokens, failed=row in result.failed)
            if scores:
                request.logprobs += scores.get(row, ())[: len(request.output) - len(request.logprobs)]
            advanced.append(request)
        for seat in [s for s in self._running.values() if s.leaving and not self._cache.in_flight(s.row)]:
            self._requeue(seat)
        return advanced

    def _end_corrupted(self, findings: tuple[Finding, ...]) -> list[Request]:
        """Those that the sanitizer does not trust. The step's tokens are not taken in, and nobody will resume
        from anything that was computed so far."""
        ended = []
        if findings:
            self._cache.reset()
        for row in dict.fromkeys(Row(finding.row) for finding in findings):
            seat = self._running.get(row)
            mine = tuple(f for f in findings if seat and (f.row, f.generation) == (row, seat.generation))
            if seat and mine:
                seat.request.error = StateCorruption((seat.request.id,), mine)
                self._leave_row(seat)
                self._end(seat.request, FinishReason.ERROR)
                ended.append(seat.request)
        return ended

    def _take_tokens(self, seat: Seat, tokens: Iterable[int], *, failed: bool) -> None:
        """One by one: the answer may end with any of them."""
        request = seat.request
        for token in tokens:
            request.tokens.append(token)
            if reason := finish_reason(request, self._limits.max_model_len):
                self._finish_row(seat)
                self._end(request, FinishReason.ERROR if failed else reason)
                return

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.id]
        self._past.add(request.metrics.speculation)
        self._sharing.forget(request.id)
        self.counters.cancelled += reason is FinishReason.CANCELLED
        self.counters.finished += reason is not FinishReason.CANCELLED
        request.finish_reason = reason
        request.pending = request.uncertain = 0
        request.metrics.finished = self._clock()


def _sits_out(seat: Seat) -> bool:
    """Until a step in flight is collected."""
    return seat.leaving or len(seat.request.tokens) + seat.request.pending >= seat.most_tokens
