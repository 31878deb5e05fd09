"""How long steps take, by rows and drafts: learned from those that ran."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field

BANDS = tuple(sorted({1, *(2**n for n in range(1, 15)), *(3 * 2**n for n in range(14))}))
"""Steps of so many rows, or a few less, are taken to be alike."""
ENOUGH = 2
"""Steps of a kind before its time is known: the first may have compiled something."""
FIRST = 4
"""Of so many the shortest counts: what has never run before takes longer, and never shorter."""
DOUBT = 0.05
"""A time may be so much shorter than it was found to be, and as much again as times differ, divided by the square
root of the steps it was found in."""
DOUBT_AT_FIRST = 0.15
"""At least, before there were enough of them."""
WEIGHT = 0.05
"""Of the newest step, at least."""
OUTLIER, USUAL = 0.2, 3.0
"""A step that took so much longer than it should, and so many times as much as times usually differ, counts as if it
had taken that,"""
IN_A_ROW = 4
"""unless it is one of so many: then what was believed before was wrong, and the shortest of them is believed."""
FADING, MOST_FADED = 1 / 20_000, 0.3
"""A time is taken to be so much shorter for each step since it was measured, and at most: what was a mishap is tried
once more, some day."""
CONTEXT_DOUBT = 1e6
"""Tokens squared by which contexts must have differed before their length is taken to cost anything,"""
DEVIATIONS = 3.0
"""and by so many standard deviations more than nothing."""


@dataclass
class Cell:
    seconds: float
    context: float
    """Tokens that all its rows had together, as the time."""
    last: int
    """Of all steps that were learned from, the last of this kind."""
    steps: int = 1
    outliers: list[float] = field(default_factory=list)
    """In a row, the last ones."""


class StepCosts:
    """Time is a constant of each kind of step, and so much for each token of context, whatever the kind."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], Cell] = {}
        self._steps = 0
        self._together = self._spread = 0.0  # of times with contexts, of contexts; each of a cell's own mean
        self._noise = 0.0  # variance of times
        self._jitter = 0.05  # by which they differ, as a part of them

    def learn(self, rows: int, depth: int, context: int, seconds: float) -> None:
        key = (band(rows), depth)
        self._steps += 1
        if key not in self._cells:
            self._cells[key] = Cell(seconds, context, self._steps)
            return
        cell = self._cells[key]
        cell.steps, cell.last = cell.steps + 1, self._steps
        if cell.steps <= FIRST:
            cell.seconds, cell.context = min((cell.seconds, cell.context), (seconds, float(context)))
            return
        further = context - cell.context
        expected = cell.seconds + self.per_token * further
        most = (1 + max(OUTLIER, USUAL * self._jitter)) * expected
        self._jitter += WEIGHT / 2 * (min(1.0, abs(seconds / expected - 1)) - self._jitter)
        if seconds > most:
            cell.outliers.append(seconds)
            if len(cell.outliers) == IN_A_ROW:
                cell.seconds, cell.context = min(cell.outliers), context
                cell.outliers.clear()
                return
            seconds = most
        else:
            cell.outliers.clear()
            keep = 1 - WEIGHT / 5
            self._together = keep * self._together + further * (seconds - cell.seconds)
            self._spread = keep * self._spread + further * further
            self._noise += WEIGHT / 5 * ((seconds - expected) ** 2 - self._noise)
        weight = max(WEIGHT, 1 / (cell.steps - FIRST + 1))
        cell.seconds += weight * (seconds - cell.seconds)
        cell.context += weight * further

    @property
    def per_token(self) -> float:
        """Seconds that a token of context costs in every step."""
        chance = DEVIATIONS * math.sqrt(self._noise * self._spread)
        return max(0.0, (self._together - chance) / (self._spread + CONTEXT_DOUBT))

    def known(self, rows: int, depth: int) -> bool:
        return self._found(band(rows), depth) is not None

    def sure(self, rows: int, depth: int) -> bool:
        cell = self._found(band(rows), depth)
        return cell is not None and cell.steps > FIRST

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

    def least(self, rows: int, depth: int, context: int) -> float:
        """That it may be for all that is known."""
        cell = self._found(band(rows), depth)
        doubt = DOUBT + min(0.4, self._jitter)
        doubt = doubt / math.sqrt(cell.steps) if cell and cell.steps > FIRST else max(doubt, DOUBT_AT_FIRST)
        return self.seconds(rows, depth, context) * (1 - doubt)

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
                    return self._at(known, context) * cell.seconds / same.seconds
        return 0.0

    def _at(self, cell: Cell, context: int) -> float:
        faded = 1 - min(MOST_FADED, FADING * (self._steps - cell.last))
        return faded * max(cell.seconds / 2, cell.seconds + self.per_token * (context - cell.context))


def band(rows: int) -> int:
    place = bisect_left(BANDS, rows)
    return BANDS[place] if place < len(BANDS) else rows
