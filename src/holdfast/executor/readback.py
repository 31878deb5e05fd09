"""What a launched step will report, read when it is asked for: a step late, when steps overlap."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ..memory.inspection import Inspection
from ..memory.state_pool import Committed
from ..plan import Grant, RowResult, StepPlan, StepResult
from ..request import TokenLogprob
from .inputs import Lanes
from .prompt_scores import PromptScores
from .sampler import Chosen


class Fetch:
    """Tensors on their way from the device to the host: later steps may overwrite them there."""

    def __init__(self, *tensors: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        self._host = tensors
        if tensors and tensors[0].is_cuda:
            self._host = tuple(torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors)
            for host, there in zip(self._host, tensors, strict=True):
                host.copy_(there, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record()

    def wait(self) -> tuple[Tensor, ...]:
        if self._done is not None:
            self._done.synchronize()
        return self._host


def report(committed: Committed, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """All that a step tells of its lanes, [4, lanes], and the tokens that it chose."""
    return torch.stack((committed.position, committed.base, committed.used, committed.missed)), chosen


@dataclass(frozen=True)
class InFlight:
    plan: StepPlan
    lanes: Lanes
    report: Fetch
    chosen: Chosen
    prompt_scores: PromptScores | None
    grants: dict[int, Grant]
    """What the device held when the step was launched, by row."""
    launched: float
    inspection: Inspection | None = None

    def result(self) -> StepResult:
        """Waits for the step."""
        lanes, chosen = self.report.wait()
        position, base, used, missed = lanes.tolist()
        tokens = {
            lane: int(chosen[at]) for lane, at in zip(self.lanes.choosers, self.lanes.places, strict=True)
        }
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
            used=self._grants(used) + self.lanes.exports,
            missed=self._grants(missed) + self.lanes.missed_exports,
            seconds=time.perf_counter() - self.launched,
            findings=self.inspection.findings() if self.inspection else (),
        )

    def _logprobs(self) -> dict[int, tuple[TokenLogprob, ...]]:
        if self.chosen.logprobs is None:
            return {}
        scored, wanted = self.chosen.logprobs.read(), self.chosen.wanted
        at = dict(zip(self.lanes.choosers, self.lanes.places, strict=True))
        return {lane: (scored[at[lane]].best(count),) for lane, count in wanted.items()}

    def _grants(self, flags: list[int]) -> tuple[Grant, ...]:
        return tuple(
            self.grants[work.row]
            for work, flag in zip(self.lanes.work, flags, strict=False)  # lanes without work are padding
            if flag and work.row in self.grants
        )
