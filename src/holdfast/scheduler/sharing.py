"""One prefix, computed once: a request may wait until another has left behind what it takes to resume.

It waits for one other, once. If that one does not deliver, or no slot is to be had, it sets out itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..cache import CacheManager, Match
from ..config import Limits, run_reaches
from ..ids import Row
from ..request import Request
from .builder import PlanBuilder
from .seat import Seat


class Sharing:
    def __init__(self, limits: Limits, cache: CacheManager) -> None:
        self.awaited: dict[str, Seat] = {}
        """By waiting request: who computes its prefix."""
        self._limits = limits
        self._cache = cache
        self._worth = cache.policy.worth_waiting

    def plan_branch(self, seat: Seat, other: Request) -> None:
        """Where a waiting request will part from one that has not come so far, it is to leave a checkpoint."""
        crowded = len(seat.lines) > 2 * self._cache.policy.per_path
        if crowded or not self._cache.keeps_checkpoints:
            return
        line = self._cache.common_len(seat.row, other)
        if line >= seat.request.planned + self._worth:
            self._want(seat, line)

    def awaits(self, request: Request, match: Match, running: Mapping[Row, Seat], plan: PlanBuilder) -> bool:
        """Does a running request compute a prefix of this one, more than the cache has already?"""
        if not self._cache.prefix_reuse or request.owes_prompt_logprobs:
            return False
        awaited = self.awaited.get(request.id)
        for seat in running.values() if awaited is None else [awaited]:
            if running.get(seat.row) is seat and self._will_leave(seat, request, match, plan):
                self._cache.counters.waited += awaited is None
                self.awaited[request.id] = seat
                return True
        return False

    def forget(self, request_id: str) -> None:
        self.awaited.pop(request_id, None)

    def _will_leave(self, seat: Seat, request: Request, match: Match, plan: PlanBuilder) -> bool:
        least = match.resumable_len + self._worth
        shared = 0 if seat.leaving else self._cache.common_len(seat.row, request)
        if shared < least:
            return False
        if not self._cache.recurrent:
            return self._cache.published_len(seat.row) < shared
        lines = (line for line in (*self._cache.promised_lines(seat.row), *seat.lines) if line <= shared)
        best = max(lines, default=0)
        asked = shared >= best + self._worth and self._ask_for(seat, shared, plan)
        return asked or best >= least

    def _ask_for(self, seat: Seat, line: int, plan: PlanBuilder) -> bool:
        """Have the row leave a checkpoint at this line, if it has not passed there yet."""
        if not self._cache.may_promise:
            return False
        start = end = seat.request.planned
        if work := plan.work.get(seat.row):
            start -= work.tokens
        if line > end:
            self._want(seat, line)
            return True
        if end - start <= self._limits.max_window or not run_reaches(line, start, end):
            return False
        export = self._cache.export(seat.row, line)
        plan.exports += filter(None, [export])
        return export is not None

    @staticmethod
    def _want(seat: Seat, line: int) -> None:
        seat.lines = tuple(sorted({*seat.lines, line}))
