"""Drafts for rows that have different chances, where a step costs by its tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from ..ids import Row
from ..plan import RowWork

ASKED = 8
"""Rows that are looked at, where a step costs by its tokens."""
UNLIKE = 1.15
"""Drafts are dealt out unevenly if that promises so many times as many tokens: such a step takes longer than one with
as many drafts that are spread evenly, for the row with most is drafted for longest."""
OWN_WEIGHT = 8.0
"""A request is taken to be like all of them until so many of its own drafts were reached."""
OWN_MEMORY = 32


@dataclass
class Own:
    """Drafts of one request that were reached, and accepted."""

    generation: int
    reached: float = 0.0
    kept: float = 0.0


class Chances:
    """Of each request's drafts, by those that it had."""

    def __init__(self) -> None:
        self._own: dict[Row, Own] = {}

    def of(self, work: RowWork, mean: float) -> float:
        """mean  of all requests"""
        own = self._own.get(work.row)
        if own is None or own.generation != work.generation:
            return mean
        return (own.kept + OWN_WEIGHT * mean) / (own.reached + OWN_WEIGHT)

    def learn(self, work: RowWork, accepted: int) -> None:
        own = self._own.get(work.row)
        if own is None or own.generation != work.generation:
            own = self._own[work.row] = Own(work.generation)
        reached = min(work.window.drafts, accepted + 1)
        keep = 1 - min(1.0, reached / OWN_MEMORY)
        own.reached, own.kept = own.reached * keep + reached, own.kept * keep + accepted


class Deal:
    """Drafts for rows that have different chances: to the likeliest to be accepted, or as many for each if that is
    not much worse. (What looks different is often chance.)"""

    def __init__(self, rates: dict[Row, float], expected: list[float]) -> None:
        """expected  tokens that a row gets from a step with 0, 1, 2, ... drafts, if all get as many"""
        self._rows = list(rates)
        places = range(1, len(expected))
        ranked = sorted(((rate**place, row) for row, rate in rates.items() for place in places), reverse=True)
        self._ranked = [row for _, row in ranked]
        dealt = [0.0, *accumulate(chance for chance, _ in ranked)][:: len(rates)]
        alike = [0.0, *accumulate(sum(rate**place for rate in rates.values()) for place in places)]
        gains = [(len(rates) + m) / (len(rates) + n) for n, m in zip(alike, dealt, strict=True)]
        self._unlike = [gain > UNLIKE for gain in gains]
        told = zip(expected, gains, self._unlike, strict=True)
        self.expected = [tokens * gain if unlike else tokens for tokens, gain, unlike in told]
        """On average over the rows."""

    def shares(self, depth: int) -> dict[Row, int]:
        """Of `depth` drafts for each row on average."""
        if not self._unlike[depth]:
            return dict.fromkeys(self._rows, depth)
        given = Counter(self._ranked[: depth * len(self._rows)])
        return {row: given[row] for row in self._rows}

    def few(self, depth: int) -> dict[Row, int]:
        """Enough of them to find out. Those that were asked in vain are not the likeliest next time."""
        asked = list(dict.fromkeys(self._ranked))[:ASKED]
        return dict.fromkeys(self._rows, 0) | dict.fromkeys(asked, depth)
