"""How likely a draft is to be accepted, by its place in the window: from what was accepted lately."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

PRIOR = 0.7
"""Of the first place, before anything was drafted."""
LIKENESS = 16.0
"""A later place is believed to be like the one before it, until it was reached more often than this."""
LONG, SHORT = 1024, 16
"""Drafts that are remembered; or those of a few steps, if that is more."""
STEPS = 8
SURPRISE = 4.0
"""Standard deviations by which the last few must differ from the many to mean that the text has changed. They are
those of drafts that know nothing of each other; drafts of a text do, and differ more."""
AFTER_CHANGE = 6.0
"""Drafts that the last few then count for: some of them were still of the text before."""
FORGETTING = 1 / 256
"""Of what is known of a place, lost with every step that does not reach it: it will be tried again."""
ALL = 8192
"""Drafts of all requests there were that are remembered;"""
WINDOWS = 32768
"""and windows of a depth,"""
TOKENS = 2048.0
"""of which this many tokens are believed to be as foretold, before there were any."""


@dataclass
class Place:
    """Drafts that were reached here, and how many of them were accepted: of long, and of late."""

    reached: float = 0.0
    kept: float = 0.0
    lately_reached: float = 0.0
    lately_kept: float = 0.0

    def gather(self, reached: int, kept: int) -> None:
        keep = 1 - min(1 / 2, reached / ALL)
        self.reached, self.kept = self.reached * keep + reached, self.kept * keep + kept

    def admit(self, part: float, others: Place) -> None:
        """In place of `part` of what is known, what is known of the others."""
        stays, theirs = 1 - part, min(LONG, others.reached)
        rate = others.kept / others.reached if others.reached else 0.0
        mine = self.kept / self.reached if self.reached else rate
        self.reached = stays * self.reached + part * theirs
        self.kept = self.reached * (stays * mine + part * rate)
        self.lately_reached, self.lately_kept = stays * self.lately_reached, stays * self.lately_kept

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


@dataclass
class Brought:
    """Tokens of windows with so many drafts, and how many had been expected."""

    tokens: float = 0.0
    expected: float = 0.0

    def learn(self, windows: int, tokens: int, expected: float) -> None:
        keep = 1 - min(1 / 2, windows / WINDOWS)
        self.tokens = self.tokens * keep + tokens
        self.expected = self.expected * keep + windows * expected

    @property
    def ratio(self) -> float:
        return (self.tokens + TOKENS) / (self.expected + TOKENS)


class Survival:
    """Of every place: of the drafts that were reached, because those before them were accepted, how many were too.

    That is known of windows as they are, and says too little of shorter ones. A long window ends where the text is
    hard to guess, and the next begins there; if it had been shorter, another would have begun where the text was
    still easy. So what windows of each depth brought is compared with what was expected of them.

    The requests that run are not all requests: a change in their texts is believed at once, and is gone with them.
    """

    def __init__(self, places: int) -> None:
        self._places, self._all = ([Place() for _ in range(places)] for _ in range(2))
        for first in (self._places[0], self._all[0]):
            first.reached, first.kept = 2.0, 2 * PRIOR
        self._brought: dict[int, Brought] = {}
        self._plain: list[float] = []  # what is plainly expected, once somebody asked

    def learn(self, windows: Counter[tuple[int, int]], *, alike: bool = True) -> None:
        """By (drafts, accepted), rows of steps that had drafts. A draft that was planned, but that the drafter did
        not make, was not accepted.

        alike  the rows had as many, whatever was known of them; so they tell how many tokens so many drafts bring
        """
        reached, kept = [0] * len(self._places), [0] * len(self._places)
        by_depth: dict[int, tuple[int, int]] = {}
        for (drafts, accepted), count in windows.items():
            for number in range(accepted):
                kept[number] += count
            for number in range(min(drafts, accepted + 1)):
                reached[number] += count
            others, tokens = by_depth.get(drafts, (0, 0))
            by_depth[drafts] = others + count, tokens + count * (1 + accepted)
        self._plain, surprised = [], False
        for number, place in enumerate(self._places):
            if reached[number]:
                self._all[number].gather(reached[number], kept[number])
            if surprised:  # nor is what was known of this place of any use
                place = self._places[number] = Place()
            surprised |= place.learn(reached[number], kept[number])
        if surprised or not alike:  # nothing like it was expected
            return
        expected = self._plainly_expected()
        for drafts, (count, tokens) in by_depth.items():
            self._brought.setdefault(drafts, Brought()).learn(count, tokens, expected[drafts])

    def admit(self, part: float) -> None:
        """So many of the requests are new: they are taken to be like all there were."""
        self._plain = []
        for place, others in zip(self._places, self._all, strict=True):
            place.admit(part, others)

    def rates(self) -> list[float]:
        """Of each place: accepted, if all before it are."""
        first, *later = self._places
        rates = [first.kept / first.reached]
        for place in later:
            rates.append((place.kept + LIKENESS * rates[-1]) / (place.reached + LIKENESS))
        return rates

    def expected(self) -> list[float]:
        """Tokens that a row gets from a step with 0, 1, 2, ... drafts."""
        tokens = self._plainly_expected().copy()
        for drafts, brought in self._brought.items():
            tokens[drafts] *= brought.ratio
        return tokens

    def _plainly_expected(self) -> list[float]:
        if not self._plain:
            chances = accumulate(self.rates(), mul)
            self._plain = list(accumulate(chances, initial=1.0))
        return self._plain
