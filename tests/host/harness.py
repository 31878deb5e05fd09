"""The engine's loop around the fake, with everything checked at every turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.cache import CacheManager, Policy
from holdfast.config import Limits
from holdfast.plan import StepPlan
from holdfast.request import FinishReason, Request, SamplingParams
from holdfast.scheduler import Scheduler
from holdfast.scheduler.depth import Depth
from holdfast.scheduler.finish import most_tokens
from holdfast.scheduler.seat import Seat

from .fake import FakeExecutor, Loses, expected_output, never


def make_limits(**changes: int) -> Limits:
    sizes = {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 16,
        "max_model_len": 24,
        "vocab_size": 97,
        "page_size": 4,
        "num_pages": 32,
        "num_slots": 6,
        "fold_every": 2,
        "max_window": 1,
    }
    sizes |= changes
    return Limits(**{"num_checkpoints": max(0, sizes["num_slots"] - sizes["max_num_seqs"]), **sizes})


def make_request(
    id_: str, prompt: tuple[int, ...], *, priority: int = 0, eos: frozenset[int] = frozenset(), **params: Any
) -> Request:
    return Request(id_, prompt, SamplingParams(**params), priority=priority, eos_token_ids=eos)


@dataclass
class Harness:
    """Keeps up to `depth` steps in flight while the next one is planned."""

    limits: Limits
    depth: int = 0
    prefix_reuse: bool = False
    policy: Policy = field(default_factory=lambda: Policy(worth_waiting=4))
    loses: Loses = never
    drafts: Depth | None = None
    """Decides how many; None: always the most that fit."""
    ended: dict[str, Request] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    turns: int = 0

    def __post_init__(self) -> None:
        self.cache = CacheManager(self.limits, prefix_reuse=self.prefix_reuse, policy=self.policy)
        self.device = FakeExecutor(self.limits, loses=self.loses)
        self.now = 0.0
        self.scheduler = Scheduler(self.limits, self.cache, clock=lambda: self.now, depth=self.drafts)

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.submit(request)

    def cancel(self, request_id: str) -> bool:
        cancelled = self.scheduler.cancel(request_id)
        self.check()
        return cancelled

    def launch(self) -> StepPlan | None:
        waiting, oldest = list(self.scheduler._waiting._requests), self._oldest()
        plan = self.scheduler.plan()
        if plan is not None:
            self.device.launch(plan)
            self.plans.append(plan)
            self.scheduler.think()
        self.check()
        self._check_order(waiting)
        self._check_progress(oldest, plan)
        return plan

    def collect(self) -> list[Request]:
        requests = self.scheduler.collect(self.device.collect())
        assert len({r.id for r in requests}) == len(requests)
        for request in requests:
            assert request.id not in self.ended, f"{request.id} goes on after its end"
        self._note(r for r in requests if r.finish_reason)
        self.check()
        return requests

    def turn(self) -> list[Request]:
        """One turn of an engine: plan, launch, collect what is too far behind."""
        self.now += 1.0
        self.turns += 1
        plan = self.launch()
        requests: list[Request] = []
        if self.device.in_flight and (plan is None or len(self.device.in_flight) > self.depth):
            requests = self.collect()
        else:
            unserved = self.scheduler.num_running + self.scheduler.num_waiting
            assert plan is not None or not unserved, "nothing runs and nothing will"
        self._note(self.scheduler.take_cancelled())
        return requests

    def drain(self, most_turns: int = 10_000) -> None:
        for _ in range(most_turns):
            if not self.scheduler.has_work:
                break
            self.turn()
        assert not self.scheduler.has_work, f"still at work after {most_turns} turns"
        self.check_idle()

    def check(self) -> None:
        audit = self.cache.check()
        assert audit.clean, audit

    def check_idle(self) -> None:
        audit = self.cache.check()
        assert audit.clean, audit
        for census in (audit.rows, audit.slots, audit.pages):
            assert census.free + census.idle == census.total, audit

    def check_answer(self, request: Request) -> None:
        """Exactly the pure function's tokens; a beginning of them if the request was cancelled."""
        wanted = expected_output(request.prompt, request.params, request.eos_token_ids, self.limits)
        if request.finish_reason is FinishReason.CANCELLED:
            assert request.output == wanted[: len(request.output)]
            assert len(request.output) < len(wanted)
            return
        stopped = wanted[-1] in request.params.stop_token_ids or (
            wanted[-1] in request.eos_token_ids and not request.params.ignore_eos
        )
        assert request.output == wanted
        assert request.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        times = request.metrics
        assert (
            times.first_scheduled is not None and times.first_token is not None and times.finished is not None
        )
        assert times.arrived <= times.first_scheduled <= times.first_token <= times.finished

    def _oldest(self) -> Seat | None:
        """The first of those that have tokens to absorb."""
        hungry = [s for s in self.scheduler._running.values() if not self._is_going(s)]
        return min(hungry, key=lambda s: s.request.order, default=None)

    def _is_going(self, seat: Seat) -> bool:
        least = seat.request.known - seat.request.uncertain
        return seat.leaving or least >= most_tokens(seat.request, self.limits.max_model_len)

    def _check_order(self, waiting: list[Request]) -> None:
        """Nobody was admitted before one that came first, unless that one lets another compute its prefix."""
        still = {request.id for request in self.scheduler._waiting._requests}
        strict = still - self.scheduler._sharing.awaited.keys()
        left = [request.order for request in waiting if request.id in strict]
        gone = [request.order for request in waiting if request.id not in still]
        assert not left or not gone or max(gone) < min(left), "somebody was overtaken"

    def _check_progress(self, oldest: Seat | None, plan: StepPlan | None) -> None:
        """The oldest running request is in every plan, or waits for pages that a step in flight will free, or to
        hear which drafts were accepted, because it may have all its tokens."""
        if oldest is None:
            return
        seats = self.scheduler._running.values()
        assert oldest in seats and not oldest.leaving, "the oldest was pre-empted"
        if plan is None or oldest.row not in {work.row for work in plan.work}:
            assert self.device.in_flight, "the oldest waits for nothing"
            if oldest.request.known >= oldest.most_tokens:
                return
            returning = self.cache.returning or self.scheduler._ended
            assert returning or any(map(self._is_going, seats)), "the oldest was passed over"

    def _note(self, requests: Iterable[Request]) -> None:
        for request in requests:
            assert request.id not in self.ended, f"{request.id} ended twice"
            self.ended[request.id] = request
            self.check_answer(request)
