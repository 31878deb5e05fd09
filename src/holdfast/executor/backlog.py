"""Tokens that a drafter has yet to absorb.

While nothing is drafted nobody asks it, so it only remembers what it will need. It catches up with many tokens at
once: before it is asked again, before a row leaves or another joins (its pages may be given away, or found by the
newcomer), and when it cannot remember more.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..config import Limits
from ..ids import Row
from ..plan import StepPlan
from ..spec.drafter import Drafter
from .inputs import Buffer, Lanes


class Backlog:
    """Of some rows the last `tokens` tokens, the same number of each.

    most  of each row, so that catching up takes no more tokens than a step may have; 0: it is never behind
    """

    def __init__(self, drafter: Drafter | None, limits: Limits, told: Buffer) -> None:
        patience = 0 if drafter is None else drafter.patience
        self.most = min(patience, limits.max_num_batched_tokens // limits.max_num_seqs)
        self.rows: list[Row] = []
        self.tokens = 0
        self._told = told

    def may_grow(self, plan: StepPlan, lanes: Lanes) -> bool:
        """By a step that drafts nothing, in which every row absorbs the one token that it knows."""
        if not self.most or plan.propose or plan.starts:
            return False
        ones = lanes.longest_window == 1 and len(lanes.work) <= lanes.num_windows  # and no run beside them
        return ones and len(lanes.choices.choosers) == len(lanes.work)

    def holds(self, rows: Sequence[Row]) -> bool:
        """It is of these rows, and there is room for a token of each."""
        return self.rows == rows and self.tokens < self.most

    def grow(self, rows: list[Row]) -> None:
        self.rows, self.tokens = rows, self.tokens + 1

    def clear(self) -> None:
        self.rows, self.tokens = [], 0

    def on_device(self, lanes: int, turn: int) -> tuple[Tensor, Tensor]:
        """Rows and counts of so many lanes; those that are not needed are padding."""
        padding = [0] * (lanes - len(self.rows))
        counts = [self.tokens] * len(self.rows) + padding
        rows, count = self._told.fill([*self.rows, *padding, *counts], turn).split(lanes)
        return rows, count
