"""Depths that nobody would choose."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from holdfast.ids import Row
from holdfast.scheduler.depth import Depth


class Restless(Depth):
    """Another one every step, and for every row another share of it."""

    def __init__(self, depths: Sequence[int], *, shares: bool = True, seed: int = 0) -> None:
        super().__init__(max(depths))
        self._depths, self._divides, self._random = depths, shares, random.Random(seed)

    def decide(self) -> int:
        self.depth = self._random.choice([depth for depth in self._depths if depth != self.depth])
        return self.depth

    def share(self, row: Row) -> int:
        return self._random.randint(0, self.depth) if self._divides else self.depth


class Lulls(Depth):
    """The same ones over and over, whatever is accepted."""

    def __init__(self, depths: Sequence[int]) -> None:
        super().__init__(max(depths))
        self._next = itertools.cycle(depths)

    def decide(self) -> int:
        self.depth = next(self._next)
        return self.depth
