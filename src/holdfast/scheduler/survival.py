"""How likely a draft is to be accepted, by its place in the window: from what was accepted lately."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

PRIOR = 0.7
"""Of the first place, before anything was drafted."""
LIKENESS = 8.0
"""A later place is believed to be like the one before it, until it was reached more often than this."""
LONG, SHORT = 64, 16
"""Drafts that are remembered; or those of a few steps, if that is more."""
STEPS = 8
SURPRISE = 2.5
"""Standard deviations by which the last few must differ from the many to mean that the text has changed."""
AFTER_CHANGE = 6.0
"""Drafts that the last few then count for: some of them were still of the text before."""
FORGETTING = 1 / 256
"""Of what is known of a place, lost with every step that does not reach it: it will be tried again."""


@dataclass
class Place:
    """Drafts that were reached here, and how many of them were accepted: of long, and of late."""

    reached: float = 0.0
    kept: float = 0.0
    lately_reached: float = 0.0
    lately_kept: float = 0.0

    def learn(self, reached: int, kept: int) -> bool:
        """True if it is a surprise: what was believed before was of another text."""
        if not reached:
            keep = (1 - FORGETTING) * min(1.0, LONG / max(1.0, self.reached))
            self.reached, self.kept = self.reached * keep, self.kept * keep
            return False
        keep, keep_lately = 1 - min(1 / STEPS, reached / LONG), 1 - min(1 / 2, reached / SHORT)
        self.reached, self.kept = self.reached * keep + reached, self.kept * keep + kept
        self.lately_reached = self.lately_reached * keep_lately + reached
        self.lately_kept = self.lately_kept * keep_lately + kept
        rate, lately = self.kept / self.reached, self.lately_kept / self.lately_reached
        doubt = math.sqrt(max(rate * (1 - rate), 0.01) / self.lately_reached)
        if abs(lately - rate) <= SURPRISE * doubt:
            return False
        self.reached, self.kept = AFTER_CHANGE, AFTER_CHANGE * lately
        return True


class Survival:
    """Of every place: of the drafts that were reached, because those before them were accepted, how many were too."""

    def __init__(self, places: int) -> None:
        self._places = [Place() for _ in range(places)]
        self._places[0].reached, self._places[0].kept = 2.0, 2 * PRIOR

    def learn(self, windows: list[tuple[int, int]]) -> None:
        """(drafts, accepted) of each row of a step that had drafts. A draft that was planned, but that the drafter
        did not make, was not accepted."""
        reached, kept = [0] * len(self._places), [0] * len(self._places)
        for (drafts, accepted), count in Counter(windows).items():
            for number in range(accepted):
                kept[number] += count
            for number in range(min(drafts, accepted + 1)):
                reached[number] += count
        surprised = False
        for number, place in enumerate(self._places):
            if surprised:  # nor is what was known of this place of any use
                place = self._places[number] = Place()
            surprised |= place.learn(reached[number], kept[number])

    def rates(self) -> list[float]:
        """Of each place: accepted, if all before it are."""
        first, *later = self._places
        rates = [first.kept / first.reached]
        for place in later:
            rates.append((place.kept + LIKENESS * rates[-1]) / (place.reached + LIKENESS))
        return rates

    def expected(self) -> list[float]:
        """Tokens that a row gets from a step with 0, 1, 2, ... drafts."""
        tokens, alive = [1.0], 1.0
        for rate in self.rates():
            alive *= rate
            tokens.append(tokens[-1] + alive)
        return tokens
