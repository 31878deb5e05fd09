"""What a launched step will report, read when it is asked for: a step late, when steps overlap."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from ..memory.state_pool import Committed
from ..plan import Grant, RowResult, StepPlan, StepResult
from ..request import TokenLogprob
from .inputs import Lanes


@dataclass(frozen=True)
class Logprobs:
    """chosen [S]; ids and values [S, k] of the k most likely tokens"""

    chosen: Tensor
    ids: Tensor
    values: Tensor

    def read(self) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
        ids, values = self.ids.tolist(), self.values.tolist()
        best = [tuple(zip(i, v, strict=True)) for i, v in zip(ids, values, strict=True)]
        return list(zip(self.chosen.tolist(), best, strict=True))


@dataclass(frozen=True)
class InFlight:
    plan: StepPlan
    lanes: Lanes
    committed: Committed
    chosen: Tensor
    """[S] tokens, for `lanes.choosers`"""
    logprobs: Logprobs | None
    wanted: dict[int, int]
    """Alternatives asked for, by lane; a lane that is absent wants no log-probabilities."""
    grants: dict[int, Grant]
    """What the device held when the step was launched, by row."""
    launched: float

    def result(self) -> StepResult:
        """Waits for the step."""
        position = self.committed.position.tolist()
        chosen = self._choices()
        return StepResult(
            step=self.plan.step,
            rows=tuple(
                RowResult(
                    row=work.row,
                    generation=work.generation,
                    position=position[lane],
                    tokens=tuple(t.token_id for t in chosen.get(lane, ())),
                    logprobs=chosen.get(lane, ()) if lane in self.wanted else (),
                )
                for lane, work in enumerate(self.lanes.work)
            ),
            used=self._grants(self.committed.used) + self.lanes.exports,
            missed=self._grants(self.committed.missed) + self.lanes.missed_exports,
            seconds=time.perf_counter() - self.launched,
        )

    def _choices(self) -> dict[int, tuple[TokenLogprob, ...]]:
        tokens = self.chosen.tolist()
        if self.logprobs is None:
            return {
                lane: (TokenLogprob(t, float("nan")),) for lane, t in zip(self.lanes.choosers, tokens, strict=True)
            }
        return {
            lane: (TokenLogprob(token, logprob, best[: self.wanted.get(lane, 0)]),)
            for lane, token, (logprob, best) in zip(
                self.lanes.choosers, tokens, self.logprobs.read(), strict=True
            )
        }

    def _grants(self, flags: Tensor) -> tuple[Grant, ...]:
        return tuple(
            self.grants[work.row]
            for work, flag in zip(self.lanes.work, flags.tolist(), strict=True)
            if flag and work.row in self.grants
        )
