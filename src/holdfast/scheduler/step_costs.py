"""How long steps take, by rows and drafts: learned from those that ran."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BANDS = tuple(sorted({1, *(2**n for n in range(1, 15)), *(3 * 2**n for n in range(14))}))
"""Steps of so many rows, or a few less, are taken to be alike."""
ENOUGH = 2
"""Steps of a kind before its time is trusted: the first may have compiled something."""
WEIGHT = 0.1
"""Of the newest step."""
OUTLIER = 1.2
"""A step that took so many times as long as it should counts as if it had taken that,"""
IN_A_ROW = 3
"""unless it is one of so many: then what was believed before was wrong."""
FADING, MOST_FADED = 1 / 20_000, 0.3
"""A time is taken to be so much shorter for each step since it was measured, and at most: what was a mishap is tried
once more, some day."""
CONTEXT_DOUBT = 1e6
"""Tokens squared by which contexts must have differed before their length is taken to cost anything."""


@dataclass
class Cell:
    seconds: float
    context: float
    """Tokens that all its rows had together, as the time."""
    last: int
    """Of all steps that were learned from, the last of this kind."""
    steps: int = 1
    outliers: int = 0
    """In a row, the last ones."""


class StepCosts:
    """Time is a constant of each kind of step, and so much for each token of context, whatever the kind."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], Cell] = {}
        self._steps = 0
        self._together = self._spread = 0.0  # of times with contexts, of contexts; each of a cell's own mean

    def learn(self, rows: int, depth: int, context: int, seconds: float) -> None:
        key = (band(rows), depth)
        self._steps += 1
        if key not in self._cells:
            self._cells[key] = Cell(seconds, context, self._steps)
            return
        cell = self._cells[key]
        cell.steps, cell.last = cell.steps + 1, self._steps
        if cell.steps <= ENOUGH:
            cell.seconds, cell.context = min((cell.seconds, cell.context), (seconds, float(context)))
            return
        further = context - cell.context
        expected = cell.seconds + self.per_token * further
        if seconds > OUTLIER * expected:
            cell.outliers += 1
            if cell.outliers == IN_A_ROW:
                cell.seconds, cell.context, cell.outliers = seconds, context, 0
                return
            seconds = OUTLIER * expected
        else:
            cell.outliers = 0
            keep = 1 - WEIGHT / 10
            self._together = keep * self._together + further * (seconds - cell.seconds)
            self._spread = keep * self._spread + further * further
        cell.seconds += WEIGHT * (seconds - cell.seconds)
        cell.context += WEIGHT * further

    @property
    def per_token(self) -> float:
        """Seconds that a token of context costs in every step."""
        return max(0.0, self._together / (self._spread + CONTEXT_DOUBT))

    def known(self, rows: int, depth: int) -> bool:
        cell = self._cells.get((band(rows), depth))
        return cell is not None and cell.steps >= ENOUGH

    def seconds(self, rows: int, depth: int, context: int) -> float:
        """Of what is not known: the least it can be, because fewer rows or drafts took as long; so whatever may be
        worth a try is tried. 0: nothing is known of anything smaller."""
        here = band(rows)
        cell = self._cells.get((here, depth))
        if cell is not None and cell.steps >= ENOUGH:
            return self._at(cell, context)
        smaller = (
            self._at(cell, context)
            for (rows_there, depth_there), cell in self._cells.items()
            if rows_there <= here and depth_there <= depth and cell.steps >= ENOUGH
        )
        return max(smaller, default=0.0)

    def _at(self, cell: Cell, context: int) -> float:
        faded = 1 - min(MOST_FADED, FADING * (self._steps - cell.last))
        return faded * max(cell.seconds / 2, cell.seconds + self.per_token * (context - cell.context))


def band(rows: int) -> int:
    place = bisect_left(BANDS, rows)
    return BANDS[place] if place < len(BANDS) else rows
