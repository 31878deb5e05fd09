"""Tokens that a drafter has yet to absorb.

While nothing is drafted nobody asks it, so it only remembers what it will need. It catches up with many tokens at
once: before it is asked again, before a row leaves or another joins (its pages may be given away, or found by the
newcomer), and when it cannot remember more.

A drafter that *trails* has cursors of its own meanwhile, which will pass the same lines, into the same slots, as the
model's did. Therefore it also catches up before a slot is given to somebody while it may still read it, or write
there; and before a row gets a second grant, for it can hold one. A pass leaves one line behind, so that there are two
of them if there may be a grant.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..config import Limits
from ..ids import Row, Slot
from ..memory.state_pool import NEVER
from ..ops.transfer import Buffer
from ..plan import Grant, RowWork, StepPlan
from ..spec.drafter import Drafter
from .inputs import Choices, Lanes


class Backlog:
    """Of some rows the last `tokens` tokens, the same number of each.

    patience  of the drafter, if it is ever behind; otherwise 0
    lanes     of a pass in which it catches up, padding among them, as in the steps that it is behind with
    longest   so long is each of them
    """

    def __init__(self, drafter: Drafter | None, limits: Limits, told: Buffer) -> None:
        self.patience = 0 if drafter is None else drafter.patience
        self.trails = drafter is not None and drafter.trails
        self.rows: list[Row] = []
        self._work: tuple[RowWork, ...] = ()  # of the last step that it grew by,
        self._choices: Choices | None = None  # and its choices
        self.tokens = self.lanes = self.longest = self._room = 0
        self._told, self._most_tokens = told, limits.max_num_batched_tokens
        self._most_held = limits.fold_every - 1 + limits.max_window
        self._slots: dict[Row, dict[Slot, int]] = {}  # of rows, and the lines for which they have them
        self._lines: dict[Row, int] = {}  # of the last grants that rows had
        self._holders: set[Row] = set()  # of grants that the drafter may not have come to yet

    def goes_on(self, plan: StepPlan, lanes: Lanes) -> bool:
        """It grows by one more step of the same rows, as it does in most steps without drafts. Then it has."""
        same = lanes.choices is self._choices and not plan.propose and not plan.starts
        if not same or self.tokens >= self._room or (self.trails and plan.grants):
            return False
        self.tokens += 1
        if not lanes.uniform:
            self.longest = self.tokens
        return True

    def room(self, lanes: int) -> int:
        """Tokens of each lane, so that catching up takes no more of them than a step may have."""
        return min(self.patience, self._most_tokens // lanes)

    def may_grow(self, plan: StepPlan, lanes: Lanes) -> bool:
        """By a step that drafts nothing, in which every row absorbs the one token that it knows."""
        if not self.patience or plan.propose or plan.starts:
            return False
        ones = lanes.longest_window == 1 and len(lanes.work) <= lanes.num_windows  # and no run beside them
        return ones and len(lanes.choices.choosers) == len(lanes.work) and self.room(len(lanes.rows)) > 0

    def holds(self, plan: StepPlan, lanes: Lanes) -> bool:
        """It is of these rows, there is room for a token of each, and what is granted does not meet what it is
        behind with."""
        same = lanes.work is self._work or self.rows == [work.row for work in lanes.work]
        if not same or self.tokens >= self.room(self.lanes):
            return False
        if not (self.trails and plan.grants):
            return True
        positions = dict(zip(self.rows, lanes.positions, strict=True))
        return all(self._goes_with(grant, positions) for grant in plan.grants)

    def _goes_with(self, grant: Grant, positions: Mapping[Row, int]) -> bool:
        """One whose line the model has passed is missed by it, but not by whoever comes later."""
        if grant.row in self._holders or grant.line <= positions.get(grant.row, grant.line):
            return False
        return not any(grant.slot in self._slots[row] for row in self.rows)

    def grow(self, lanes: Lanes) -> None:
        if not self.tokens:
            self.rows, self.lanes = [work.row for work in lanes.work], len(lanes.rows)
            self._holders.clear()
            if self.trails:
                for row, most, uncertain in zip(self.rows, lanes.positions, lanes.uncertain, strict=True):
                    self._passed(row, most - uncertain - self._most_held)
        self.tokens, self._work, self._choices = self.tokens + 1, lanes.work, lanes.choices
        self._room = self.room(self.lanes)
        self.longest = self._room if lanes.uniform else self.tokens

    def _passed(self, row: Row, line: int) -> None:
        """The drafter begins at this line or beyond: slots for those before it are none of its business any more."""
        self._slots[row] = {slot: for_line for slot, for_line in self._slots[row].items() if for_line >= line}
        if self._lines.get(row, line) > line:
            self._holders.add(row)

    def heard(self, plan: StepPlan) -> None:
        """Of slots that rows have from this step on."""
        if not self.trails:
            return
        for start in plan.starts:
            # its own goes with every line
            self._slots[start.row] = {start.read_slot: start.base, start.own_slot: NEVER}
            self._lines.pop(start.row, None)
        for grant in plan.grants:
            self._slots[grant.row][grant.slot] = grant.line
            self._lines[grant.row] = grant.line
            self._holders.add(grant.row)

    def clear(self) -> None:
        self.rows, self._work, self._choices, self.tokens = [], (), None, 0

    @property
    def passes(self) -> int:
        return 2 if self._holders else 1

    def on_device(self, lanes: int, turn: int) -> tuple[Tensor, Tensor]:
        """Rows and counts of so many lanes; those that are not needed are padding."""
        padding = [0] * (lanes - len(self.rows))
        counts = [self.tokens] * len(self.rows) + padding
        rows, count = self._told.fill([*self.rows, *padding, *counts], turn).split(lanes)
        return rows, count
