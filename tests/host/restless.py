"""A depth that nobody would choose: another one every step, and for every row another share of it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from holdfast.ids import Row
from holdfast.scheduler.depth import Depth


class Restless(Depth):
    def __init__(self, depths: Sequence[int], *, shares: bool = True, seed: int = 0) -> None:
        super().__init__(max(depths))
        self._depths, self._divides, self._random = depths, shares, random.Random(seed)

    def decide(self) -> int:
        self.depth = self._random.choice([depth for depth in self._depths if depth != self.depth])
        return self.depth

    def share(self, row: Row) -> int:
        return self._random.randint(0, self.depth) if self._divides else self.depth
