"""How long steps take, by rows and drafts: learned from those that ran."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass

BANDS = tuple(sorted({1, *(2**n for n in range(1, 15)), *(3 * 2**n for n in range(14))}))
"""Steps of so many rows, or a few less, are taken to be alike."""
ENOUGH = 2
"""Steps of a kind before its time is known."""
FIRST = 6
"""Steps of a kind, of which the shortest is believed: the first may have compiled something, or loaded a graph."""
REMEMBERED = 32
"""Steps of a kind after them, about: it is their mean that is believed. It is not their median, by which short steps
would look shorter than they are: what the host does now and then makes up more of them."""
INTERRUPTED = 1.5
"""Times what is believed: no step counts for more."""
FORESEEN, SEEN = 0.7, 0.8
"""What was only seen with more or fewer rows may take so much of what that suggests; and what was seen few times."""
PAUSE, RECALLED = 64, 8
"""After so many steps of other kinds, all that is remembered counts as so many steps: whoever looks again goes by
what is seen now."""
FEW = 16
"""Of so few steps"""
SHORTER, LONGER = 2.0, 0.5
"""one that is shorter than is believed counts for more, and one that is longer for less: a kind that looks shorter
than it is will be in use, and then is known; one that looks longer is left alone."""
STAY = 8
"""After so many steps of one kind, what further ones take longer or shorter is put down to the machine."""
WEIGHT = 0.01
"""Of the newest step, in what a token of context costs;"""
OUTLIER = 1.3
"""if it did not take so many times as long as it should."""
CONTEXT_DOUBT = 1e6
"""Tokens squared by which contexts must have differed before their length is taken to cost anything,"""
DEVIATIONS = 3.0
"""and by so many standard deviations more than nothing."""


@dataclass
class Cell:
    """Steps of a kind."""

    seconds: float = math.inf
    """What is believed,"""
    context: float = 0.0
    """with so many tokens that all rows know together."""
    pace: float = 1.0
    """Of the machine, when it was."""
    steps: int = 0
    weight: int = 0
    """Steps that what is believed counts as."""
    last: int = 0
    """Of all steps that were learned from, the last of this kind."""
    mark: tuple[int, float] = (0, 0.0)
    """Context and time of one of them, to compare others with."""


class StepCosts:
    """Time is a constant of each kind of step, and so much for each token of context, whatever the kind.

    shared  with whatever else the machine does, so that all kinds take longer for a while, and then shorter again
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._pace = 1.0  # how long steps of any kind take now, compared with the first
        self._last: tuple[int, int] | None = None
        self._stay = 0  # steps of the last kind in a row
        self._cells: dict[tuple[int, int], Cell] = {}
        self._steps = 0
        self.per_token = 0.0
        """Seconds that a token of context costs in every step."""
        self._together = self._spread = 0.0  # of times with contexts, of contexts, as steps of a kind differ
        self._noise = 0.0  # variance of times, as they differ

    def learn(self, rows: int, depth: int, context: int, seconds: float) -> None:
        kind = (band(rows), depth)
        cell = self._cells.get(kind) or self._cells.setdefault(kind, Cell())
        self._stay, self._last = self._stay + 1 if kind == self._last else 0, kind
        self._steps, cell.steps = self._steps + 1, cell.steps + 1
        if cell.steps <= FIRST:
            cell.seconds, cell.context = min(self._at(cell, context), seconds), context
        else:
            self._average(cell, context, seconds)
        cell.pace, cell.last = self._pace, self._steps

    def _average(self, cell: Cell, context: int, seconds: float) -> None:
        if self._steps - cell.last > PAUSE:
            cell.weight = min(cell.weight, RECALLED)
        before = cell.seconds = cell.seconds * self._pace / cell.pace
        self._learn_context(cell, context, seconds)
        cell.weight = min(REMEMBERED, cell.weight + 1)
        part = 1 / cell.weight
        if cell.weight <= FEW:
            part = min(1.0, part * (SHORTER if seconds < before else LONGER))
        cell.seconds += part * (min(seconds, INTERRUPTED * before) - before)
        cell.context += part * (context - cell.context)
        if self._shared and self._stay >= STAY:
            self._pace *= cell.seconds / before

    def _learn_context(self, cell: Cell, context: int, seconds: float) -> None:
        """From how it differs from one of the steps before it."""
        there, then = cell.mark
        if not then or cell.steps % FEW == 0:
            cell.mark = context, seconds
        if not then or context == there or max(seconds, then) > OUTLIER * cell.seconds:
            return
        further, longer = context - there, seconds - then
        rest = longer - self.per_token * further
        self._together += WEIGHT * (further * longer - self._together)
        self._spread += WEIGHT * (further * further - self._spread)
        self._noise += WEIGHT * (rest * rest - self._noise)
        chance = DEVIATIONS * math.sqrt(self._noise * self._spread * WEIGHT)
        self.per_token = max(0.0, (self._together - chance) / (self._spread + WEIGHT * CONTEXT_DOUBT))

    def known(self, rows: int, depth: int) -> bool:
        return self._found(band(rows), depth) is not None

    def sure(self, rows: int, depth: int) -> bool:
        """Known by more than its first steps."""
        cell = self._found(band(rows), depth)
        return cell is not None and cell.steps >= FIRST

    def foreseen(self, rows: int, depth: int) -> bool:
        """Not known, but of a few rows more or less."""
        return self._as_nearby(band(rows), depth, 0) > 0

    def seconds(self, rows: int, depth: int, context: int) -> float:
        """Of what is not known: as it was with a few rows more or less, in proportion to another depth that is known
        of both. Or else the least it can be, because fewer rows or drafts took as long; so whatever may be worth a
        try is tried. 0: nothing is known of anything smaller."""
        here = band(rows)
        if cell := self._found(here, depth):
            return self._at(cell, context)
        if seconds := self._as_nearby(here, depth, context):
            return seconds
        smaller = (
            self._at(cell, context)
            for (rows_there, depth_there), cell in self._cells.items()
            if rows_there <= here and depth_there <= depth and cell.steps >= ENOUGH
        )
        return max(smaller, default=0.0)

    def _found(self, here: int, depth: int) -> Cell | None:
        cell = self._cells.get((here, depth))
        return cell if cell is not None and cell.steps >= ENOUGH else None

    def _as_nearby(self, here: int, depth: int, context: int) -> float:
        """0: nothing is known there either."""
        own = {d: cell for (rows, d), cell in self._cells.items() if rows == here and cell.steps >= ENOUGH}
        others = [rows for (rows, d), cell in self._cells.items() if d == depth and cell.steps >= ENOUGH]
        for there in sorted(others, key=lambda rows: max(rows / here, here / rows)):
            cell = self._cells[there, depth]
            if not own:
                return self._at(cell, context)
            for other, known in own.items():
                if same := self._found(there, other):
                    return self._at(known, context) * self._at(cell, context) / self._at(same, context)
        return 0.0

    def _at(self, cell: Cell, context: int) -> float:
        seconds = cell.seconds * self._pace / cell.pace
        return max(seconds / 2, seconds + self.per_token * (context - cell.context))


@functools.cache
def band(rows: int) -> int:
    place = bisect_left(BANDS, rows)
    return BANDS[place] if place < len(BANDS) else rows
