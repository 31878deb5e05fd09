"""What a launched step will report, read when it is asked for: a step late, when steps overlap."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from ..memory.inspection import Inspection
from ..memory.state_pool import Committed
from ..plan import Grant, RowResult, StepPlan, StepResult
from ..request import TokenLogprob
from .inputs import Lanes
from .prompt_scores import PromptScores
from .sampler import Chosen


@dataclass(frozen=True)
class InFlight:
    plan: StepPlan
    lanes: Lanes
    committed: Committed
    chosen: Chosen
    prompt_scores: PromptScores | None
    grants: dict[int, Grant]
    """What the device held when the step was launched, by row."""
    launched: float
    inspection: Inspection | None = None

    def result(self) -> StepResult:
        """Waits for the step."""
        position, base = self.committed.position.tolist(), self.committed.base.tolist()
        tokens = dict(zip(self.lanes.choosers, self.chosen.tokens.tolist(), strict=True))
        logprobs = self._logprobs()
        prompt_logprobs = self.prompt_scores.read() if self.prompt_scores else {}
        return StepResult(
            step=self.plan.step,
            rows=tuple(
                RowResult(
                    row=work.row,
                    generation=work.generation,
                    position=position[lane],
                    tokens=(tokens[lane],) if lane in tokens else (),
                    logprobs=logprobs.get(lane, ()),
                    prompt_logprobs=prompt_logprobs.get(lane, ()),
                    base=base[lane],
                )
                for lane, work in enumerate(self.lanes.work)
            ),
            used=self._grants(self.committed.used) + self.lanes.exports,
            missed=self._grants(self.committed.missed) + self.lanes.missed_exports,
            seconds=time.perf_counter() - self.launched,
            findings=self.inspection.findings() if self.inspection else (),
        )

    def _logprobs(self) -> dict[int, tuple[TokenLogprob, ...]]:
        if self.chosen.logprobs is None:
            return {}
        scored = zip(self.lanes.choosers, self.chosen.logprobs.read(), strict=True)
        wanted = self.chosen.wanted
        return {lane: (logprob.best(wanted[lane]),) for lane, logprob in scored if lane in wanted}

    def _grants(self, flags: Tensor) -> tuple[Grant, ...]:
        return tuple(
            self.grants[work.row]
            for work, flag in zip(self.lanes.work, flags.tolist(), strict=True)
            if flag and work.row in self.grants
        )
