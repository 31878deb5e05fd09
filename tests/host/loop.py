"""Steps that never ran, of which a policy is told."""

from __future__ import annotations

from holdfast.ids import Row
from holdfast.plan import RowWork, StepPlan, StepResult, Window
from holdfast.scheduler.depth import Depth


class Loop:
    """Steps of rows whose first `right(row)` drafts are accepted; `seconds(tokens)` each.

    late  by so many steps the policy is told
    """

    def __init__(self, depth: Depth, rows: int = 2, *, late: int = 0) -> None:
        self.late, self.untold = late, list[StepResult]()
        self.depth, self.step = depth, 0
        self.windows = {Row(row): Window() for row in range(1, rows + 1)}
        self.right = {row: 0 for row in self.windows}
        self.propose = 0
        self.starved = False

    def seconds(self, tokens: int) -> float:
        return 0.010

    def run(self, steps: int) -> list[int]:
        made = []
        for _ in range(steps):
            self.step += 1
            propose = self.depth.decide()
            work = tuple(RowWork(row, 1, 1 + w.drafts, w) for row, w in self.windows.items())
            positions = (100,) * len(work)
            self.depth.planned(StepPlan(self.step, work=work, positions=positions, propose=propose))
            self.windows = {row: Window(min(propose, self.depth.share(row))) for row in self.windows}
            self.depth.think()
            tokens = [(0,) * (1 + min(w.window.drafts, self.right[w.row])) for w in work]
            seconds = self.seconds(sum(w.tokens for w in work))
            self.untold.append(
                StepResult(self.step, work, tokens=tokens, seconds=seconds, starved=self.starved)
            )
            if len(self.untold) > self.late:
                self.depth.collected(self.untold.pop(0))
            made.append(propose)
        return made
