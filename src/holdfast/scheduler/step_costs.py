"""How long steps take, by rows and drafts: learned from those that ran."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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
FORESEEN, SEEN = 0.7, 0.9
"""What was only seen with more or fewer rows may take so much of what that suggests; and what was seen few times."""
PAUSE, RECALLED = 64, 8
"""After so many steps of other kinds, all that is remembered counts as so many steps: whoever looks again goes by
what is seen now."""
FEW = 16
"""Of so few steps"""
SHORTER, LONGER = 2.0, 0.5
"""one that is shorter than is believed counts for more, and one that is longer for less: a kind that looks shorter
than it is will be in use, and then is known; one that looks longer is left alone."""
COMPARED = 64
"""Steps of a kind, by which it shows what a token of context costs: so many that contexts differ."""
WEIGHT = 0.003
"""Of the newest step, in what a token of context costs;"""
OUTLIER = 1.3
"""if it did not take so many times as long as it should."""
CONTEXT_DOUBT = 1e6
"""Tokens squared by which contexts must have differed before their length is taken to cost anything,"""
DEVIATIONS = 3.0
"""and by so many standard deviations more than nothing."""
PACE = 32
"""Where device and host are one, steps by which it is known how fast the machine is now, of kinds of which there were
so many;"""
RELATIVE = 256
"""and by which it is known how long a kind takes compared with others."""
FIXED = 0.6
"""Of what a step without drafts takes there, so much, of every step, hardly changes with the pace."""
HOST_STEPS = 32
"""By which the host's pace is known."""
CREEP = 1 / 256
"""Of what the host takes more than ever, so much is put down to its having more to do."""
HICCUP = 3.0
"""Times the least that the host takes: no step counts for more."""


class Belief(NamedTuple):
    """What a step of some rows and drafts takes."""

    seconds: float
    """0: nothing is known of anything smaller."""
    steps: int = 0
    """That were seen with so many rows; 0: too few."""
    foreseen: bool = False
    """It was seen with a few rows more or less."""

    @property
    def known(self) -> bool:
        return self.steps > 0

    @property
    def sure(self) -> bool:
        """It was seen more often than a few first times."""
        return self.steps >= FIRST


@dataclass
class Cell:
    """Steps of a kind."""

    seconds: float = 0.0
    """What the device takes, as is believed, at a pace of 1; 0: it always had to wait for the host,"""
    context: float = 0.0
    """with so many tokens that all rows know together."""
    host: float = 0.0
    """The least that the host takes."""
    steps: int = 0
    seen: int = 0
    """Those that tell what the device takes."""
    weight: int = 0
    """Steps that what is believed counts as."""
    last: int = 0
    """Of all steps that were learned from, the last of this kind."""
    felt: float = 1.0
    """Of a small change of the machine's pace."""
    others: tuple[int, float, float] = (0, 0.0, 0.0)
    """How many there were of late, their context and what they took, on average: to compare others with."""


class StepCosts:
    """Device and host each do their part of a step beside the other, and it takes as long as the slower of them. What
    the device takes is a constant of each kind of step, and so much for each token of context, whatever the kind.
    What the host takes is a constant too, times a pace that changes with whatever else it does, and that is the same
    for all kinds: the steps that are made tell it of those that are not.

    shared  device and host are one machine, whose pace all kinds share: within seconds it changes by more than kinds
            differ that are worth comparing. None is believed to be slow because the machine was when it was seen
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared, self._pace = shared, 1.0
        self._host = deque([1.0], HOST_STEPS)  # the host's pace in the last steps
        self._bands: dict[int, dict[int, Cell]] = {}
        self._here = 0  # the last band
        self._foreseen: dict[tuple[int, int], tuple[int, float]] = {}  # while the band is the same
        self._steps = 0
        self.per_token = 0.0
        """Seconds that a token of context costs in every step."""
        self._together = self._spread = 0.0  # of times with contexts, of contexts, as steps of a kind differ
        self._noise = 0.0  # variance of times, as they differ

    def learn(
        self,
        rows: int,
        depth: int,
        context: int,
        seconds: float,
        host: float = 0.0,
        *,
        starved: bool = False,
        steps: int = 1,
    ) -> None:
        """Of one step, or the mean of several that count for so many.

        starved  the device may have waited for the host, so it takes so long at most
        """
        here = band(rows)
        cells = self._bands.setdefault(here, {})
        cell = cells.get(depth) or cells.setdefault(depth, Cell())
        known, pauses = cell.steps >= ENOUGH, self._steps // PAUSE
        self._steps, cell.steps = self._steps + steps, cell.steps + steps
        if here != self._here or known != (cell.steps >= ENOUGH) or self._steps // PAUSE > pauses:
            self._here = here
            self._foreseen.clear()
        if host:
            cell.host = min(host, cell.host + CREEP * (host - cell.host)) if cell.host else host
            self._host.extend([min(host / cell.host, HICCUP)] * steps)
        if not starved or seconds < self._now(cell):
            self._learn_device(cell, context, seconds, steps)
        if self._shared and 0 in cells and cell.seconds:
            now, cell.felt = self._now(cell), 1 - FIXED * min(1.0, cells[0].seconds / cell.seconds)
            cell.seconds = now / self._pace**cell.felt
        cell.last = self._steps

    def _learn_device(self, cell: Cell, context: int, seconds: float, steps: int) -> None:
        first = cell.seen < FIRST
        cell.seen += steps
        if first:
            seconds = min(self._device(cell, context), seconds) if cell.seconds else seconds
            cell.seconds, cell.context = seconds / self._pace**cell.felt, context
        else:
            self._average(cell, context, seconds, steps)

    def _average(self, cell: Cell, context: int, seconds: float, steps: int) -> None:
        before = self._now(cell)
        self._learn_context(cell, context, seconds, steps)
        if self._steps - cell.last > PAUSE and not self._shared:
            cell.weight = min(cell.weight, RECALLED)
        cell.weight = min(RELATIVE if self._shared else REMEMBERED, cell.weight + steps)
        part = min(1.0, steps / cell.weight)
        if cell.weight <= FEW and not self._shared:
            part = min(1.0, part * (SHORTER if seconds < before else LONGER))
        longer = min(seconds / before, INTERRUPTED) - 1 if before else 0.0
        cell.seconds *= 1 + part * longer
        cell.context += part * (context - cell.context)
        if self._shared and cell.weight >= PACE:
            self._pace *= (1 + longer / PACE) ** (1 / cell.felt)

    def _learn_context(self, cell: Cell, context: int, seconds: float, count: int) -> None:
        """From how it differs from others of its kind."""
        if seconds > OUTLIER * self._now(cell):
            return
        steps, where, took = cell.others
        further, longer, part = context - where, seconds - took, count / (steps + count)
        cell.others = min(steps + count, COMPARED), where + part * further, took + part * longer
        if not steps:
            return
        rest, weight = longer - self.per_token * further, WEIGHT * count
        self._together += weight * (further * longer - self._together)
        self._spread += weight * (further * further - self._spread)
        self._noise += weight * (rest * rest - self._noise)
        chance = DEVIATIONS * math.sqrt(self._noise * self._spread * WEIGHT)
        self.per_token = max(0.0, (self._together - chance) / (self._spread + WEIGHT * CONTEXT_DOUBT))

    def beliefs(self, rows: int, depths: Iterable[int], context: int) -> dict[int, Belief]:
        """Of what is not known: as it was with a few rows more or less, in proportion to another depth that is known
        of both. Or else the least it can be, because fewer rows or drafts took as long; so whatever may be worth a
        try is tried."""
        here = band(rows)
        cells, times = self._bands.get(here, {}), self._times(here, context)
        found = {}
        for depth in depths:
            if depth in times:
                found[depth] = Belief(times[depth], cells[depth].steps)
            else:
                nearby = self._as_nearby(here, depth, context, times)
                seconds = nearby or self._at_least(here, depth, context)
                found[depth] = Belief(seconds, foreseen=nearby > 0)
        return found

    def seconds(self, rows: int, depth: int, context: int) -> float:
        return self.beliefs(rows, (depth,), context)[depth].seconds

    def _as_nearby(self, here: int, depth: int, context: int, own: dict[int, float]) -> float:
        """own: what is known here.  0: nothing is known there either"""
        if (here, depth) not in self._foreseen:
            known = [rows for rows, cells in self._bands.items() if depth in cells and rows != here]
            for there in sorted(known, key=lambda rows: max(rows / here, here / rows)):
                times = self._times(there, context)
                if depth in times:
                    if not own:
                        return times[depth]
                    if both := own.keys() & times.keys():
                        other = max(both, key=lambda drafts: self._bands[here][drafts].steps)
                        self._foreseen[here, depth] = other, times[depth] / times[other]
                        break
            else:
                return 0.0
        other, times_as_long = self._foreseen[here, depth]
        return own[other] * times_as_long

    def _at_least(self, here: int, depth: int, context: int) -> float:
        smaller = (self._times(rows, context) for rows in self._bands if rows <= here)
        return max((t for times in smaller for drafts, t in times.items() if drafts <= depth), default=0.0)

    def _times(self, here: int, context: int) -> dict[int, float]:
        """By drafts, of those that are known. With fewer the host does not take longer."""
        times, least, pace = {}, math.inf, sum(self._host) / len(self._host)
        cells = self._bands.get(here, {})
        for depth in sorted(cells, reverse=True):
            cell = cells[depth]
            if cell.steps < ENOUGH:
                continue
            least = min(least, cell.host)
            times[depth] = max(self._device(cell, context), least * pace)
        return times

    def _device(self, cell: Cell, context: int) -> float:
        seconds = self._now(cell)
        return max(seconds / 2, seconds + self.per_token * (context - cell.context))

    def _now(self, cell: Cell) -> float:
        """At the machine's pace, with the context it had."""
        return cell.seconds * self._pace**cell.felt if self._shared else cell.seconds


@functools.cache
def band(rows: int) -> int:
    place = bisect_left(BANDS, rows)
    return BANDS[place] if place < len(BANDS) else rows
