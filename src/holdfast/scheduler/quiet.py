"""How long nothing has changed: the longer, the less is tried."""

from __future__ import annotations

import math

QUIET, LEAST = 512, 1 / 8
"""After so many steps without drafts less is tried, the longer they go on, but an eighth at least: what has not
changed for long is not likely to in the next moment."""
LONG_ENOUGH = 128
"""Drafts that were made for so many steps begin it anew; others were a mistake."""


class Quiet:
    """Steps without drafts, by band of rows, since some were made for long."""

    def __init__(self) -> None:
        self._steps: dict[int, float] = {}
        self._drafted = 0.0  # steps with drafts, since there were none

    def count(self, here: int, steps: float, *, drafts: bool) -> None:
        if not drafts:
            self._steps[here], self._drafted = self._steps.get(here, 0.0) + steps, 0.0
            return
        self._drafted += steps
        if self._drafted >= LONG_ENOUGH:
            self._steps[here] = 0.0

    def vigilance(self, here: int) -> float:
        """Of what may be lost by trying, so much."""
        return rarer(self._steps.get(here, 0.0), QUIET)


def rarer(steps: float, after: float) -> float:
    """As often as 1 over the root of the time: where a change is the less likely the longer there was none, that
    loses least by asking and by asking too late together."""
    return max(LEAST, math.sqrt(after / steps)) if steps > after else 1.0
