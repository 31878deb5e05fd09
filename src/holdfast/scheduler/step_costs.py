"""How long steps take, by rows and drafts: learned from those that ran."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

BANDS = tuple(sorted({1, *(2**n for n in range(1, 15)), *(3 * 2**n for n in range(14))}))
"""Steps of so many rows, or a few less, are taken to be alike."""
ENOUGH = 2
"""Steps of a kind before its time is known: the first may have compiled something."""
REMEMBERED = 16
"""Steps of a kind, the last ones. A quarter of them took less than is believed: what interrupts a step makes it
longer and never shorter, and a patch of slow ones is forgotten with the first few that are not."""
FORESEEN = 0.7
"""What was only seen with more or fewer rows may take so much of what that suggests."""
PAUSE = 64
"""Steps of other kinds, after which all that is remembered counts as one step: whoever looks again goes by what is
seen now."""
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
    """Steps of a kind: their times, and the tokens that all rows of each had together."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    contexts: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    seconds: float = 0.0
    """What is believed, with the last one's context."""
    pace: float = 1.0
    """Of the machine, when it was."""
    steps: int = 0
    last: int = 0
    """Of all steps that were learned from, the last of this kind."""


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
        self._steps += 1
        self._stay, self._last = self._stay + 1 if kind == self._last else 0, kind
        if cell.times and not self._stay:
            self._resume(cell)
        before = self._at(cell, context) if self._shared and cell.times else 0.0
        if len(cell.times) >= ENOUGH and context != cell.contexts[0]:
            self._learn_context(cell, context, seconds)
        cell.times.append(seconds)
        cell.contexts.append(context)
        cell.steps, cell.last = cell.steps + 1, self._steps
        ranked = sorted(cell.times)
        if self.per_token:
            there = zip(cell.times, cell.contexts, strict=True)
            ranked = sorted(took + self.per_token * (context - other) for took, other in there)
        cell.seconds = ranked[len(ranked) // 4]
        if self._shared and self._stay >= STAY:
            self._pace *= cell.seconds / before
        cell.pace = self._pace

    def _resume(self, cell: Cell) -> None:
        """After steps of other kinds."""
        times, contexts = list(cell.times), list(cell.contexts)
        if self._steps - cell.last > PAUSE:
            times, contexts = [cell.seconds], contexts[-1:]
        cell.times.clear()
        cell.contexts.clear()
        cell.times.extend(took * self._pace / cell.pace for took in times)
        cell.contexts.extend(contexts)
        cell.seconds, cell.pace = cell.seconds * self._pace / cell.pace, self._pace

    def _learn_context(self, cell: Cell, context: int, seconds: float) -> None:
        """From how it differs from the first that is remembered."""
        further, longer = context - cell.contexts[0], seconds - cell.times[0]
        most = OUTLIER * cell.seconds
        if seconds > most or cell.times[0] > most:
            return
        rest = longer - self.per_token * further
        self._together += WEIGHT * (further * longer - self._together)
        self._spread += WEIGHT * (further * further - self._spread)
        self._noise += WEIGHT * (rest * rest - self._noise)
        chance = DEVIATIONS * math.sqrt(self._noise * self._spread * WEIGHT)
        self.per_token = max(0.0, (self._together - chance) / (self._spread + WEIGHT * CONTEXT_DOUBT))

    def known(self, rows: int, depth: int) -> bool:
        return self._found(band(rows), depth) is not None

    def trust(self, rows: int, depth: int) -> float:
        """In what is known of it: the first steps of a kind are slow, and there may have been no others."""
        cell = self._found(band(rows), depth)
        return min(1.0, cell.steps / REMEMBERED) if cell else 1.0

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
            if rows_there <= here and depth_there <= depth and len(cell.times) >= ENOUGH
        )
        return max(smaller, default=0.0)

    def _found(self, here: int, depth: int) -> Cell | None:
        cell = self._cells.get((here, depth))
        return cell if cell is not None and len(cell.times) >= ENOUGH else None

    def _as_nearby(self, here: int, depth: int, context: int) -> float:
        """0: nothing is known there either."""
        own = {
            d: cell for (rows, d), cell in self._cells.items() if rows == here and len(cell.times) >= ENOUGH
        }
        others = [rows for (rows, d), cell in self._cells.items() if d == depth and len(cell.times) >= ENOUGH]
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
        return max(seconds / 2, seconds + self.per_token * (context - cell.contexts[-1]))


def band(rows: int) -> int:
    place = bisect_left(BANDS, rows)
    return BANDS[place] if place < len(BANDS) else rows
