"""How likely a draft is to be accepted, by its place in the window: from what was accepted lately."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
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
SURPRISE = 4.5
"""Standard deviations by which the last few must differ from the many to mean that the text has changed. They are
those of drafts that know nothing of each other; drafts of a text do, and differ more."""
SETTLED = 128
"""Drafts after a change, by which it is over."""
AFTER_CHANGE = 6.0
"""Drafts that the last few then count for: some of them were still of the text before."""
FORGETTING = 1 / 256
"""Of what is known of a place, lost with every step that does not reach it: it will be tried again."""
ALL = 8192
"""Drafts of all requests there were that are remembered;"""
WINDOWS = 32768
"""and windows of a depth,"""
TOKENS, SOONER = 2048.0, 512.0
"""of which this many tokens are believed to be as foretold, before there were any; fewer where steps take long, for
there are few of them."""
RUNS, FEW_RUNS = 256, 32
"""Runs of accepted drafts that are remembered; and so many, before they say as much as places do."""
ALIKE = 200
"""Windows in a row that are believed to bring the same, before there were any."""


@dataclass
class Place:
    """Drafts that were reached here, and how many of them were accepted: of long, and of late."""

    reached: float = 0.0
    kept: float = 0.0
    fresh: float = 0.0
    """Those reached in fresh windows."""
    lately_reached: float = 0.0
    lately_kept: float = 0.0

    def gather(self, reached: int, kept: int, *, fresh: bool) -> None:
        self._add(reached, kept, fresh, keep=1 - min(1 / 2, reached / ALL))

    def admit(self, part: float, others: Place) -> None:
        """In place of `part` of what is known, what is known of the others."""
        if not others.reached:
            return
        stays, theirs = 1 - part, min(LONG, others.reached)
        mine = self if self.reached else others
        reached = stays * self.reached + part * theirs
        self.kept, self.fresh = (
            reached * (stays * one / mine.reached + part * other / others.reached)
            for one, other in ((mine.kept, others.kept), (mine.fresh, others.fresh))
        )
        self.reached = reached
        self.lately_reached, self.lately_kept = stays * self.lately_reached, stays * self.lately_kept

    def learn(self, reached: int, kept: int, *, fresh: bool) -> bool:
        """True if it is a surprise: what was believed before was of another text."""
        if not reached:
            self._add(0, 0, False, keep=(1 - FORGETTING) * min(1.0, LONG / max(1.0, self.reached)))
            return False
        self._add(reached, kept, fresh, keep=1 - min(1 / STEPS, reached / LONG))
        keep_lately = 1 - min(1 / 2, reached / SHORT)
        self.lately_reached = self.lately_reached * keep_lately + reached
        self.lately_kept = self.lately_kept * keep_lately + kept
        rate, lately = self.kept / self.reached, self.lately_kept / self.lately_reached
        doubt = math.sqrt(max(rate * (1 - rate), 0.01) / self.lately_reached)
        if abs(lately - rate) <= SURPRISE * doubt:
            return False
        self.reached, self.kept, self.fresh = AFTER_CHANGE, AFTER_CHANGE * lately, AFTER_CHANGE * fresh
        return True

    def _add(self, reached: int, kept: int, fresh: bool, *, keep: float) -> None:
        self.reached, self.kept = self.reached * keep + reached, self.kept * keep + kept
        self.fresh = self.fresh * keep + reached * fresh


@dataclass
class Brought:
    """Tokens of windows with so many drafts, and how many had been expected."""

    foretold: float = TOKENS
    tokens: float = 0.0
    expected: float = 0.0

    def learn(self, windows: int, tokens: int, expected: float) -> None:
        keep = 1 - min(1 / 2, windows / WINDOWS)
        self.tokens = self.tokens * keep + tokens
        self.expected = self.expected * keep + windows * expected

    @property
    def ratio(self) -> float:
        return (self.tokens + self.foretold) / (self.expected + self.foretold)


@dataclass
class Drafted:
    """How many were kept and lost of the drafts of so many windows."""

    windows: float = 0.0
    kept: float = 0.0
    lost: float = 0.0

    def learn(self, windows: int, kept: int, lost: int) -> None:
        keep = 1 - min(1 / 2, windows / WINDOWS)
        self.windows = self.windows * keep + windows
        self.kept, self.lost = self.kept * keep + kept, self.lost * keep + lost

    def odds(self, kept: float, lost: float) -> float:
        """As if there had been others as well, of which so many were."""
        return (self.kept + kept) / (self.lost + lost)


class Series:
    """Windows of so many drafts in a row, however many the first of them brought."""

    def __init__(self) -> None:
        self.fresh, self.later = Drafted(), Drafted()

    @property
    def ratio(self) -> float:
        """The odds of drafts in later ones to those in fresh ones. In a text that is guessed either always or never
        both bring the same. Never above 1: by chance it seems so too, and then drafts would be made that lose time;
        otherwise it takes a few looks more to make those that gain some."""
        fresh, later = self.fresh, self.later
        part = ALIKE / max(1.0, fresh.windows + later.windows)
        usual = 1 + part * (fresh.kept + later.kept), 1 + part * (fresh.lost + later.lost)
        return min(1.0, later.odds(*usual) / fresh.odds(*usual))


class Survival:
    """Of every place: of the drafts that were reached, because those before them were accepted, how many were too.

    That is known of windows as they are, and says too little of shorter ones. A long window ends where the text is
    hard to guess, and the next begins there; if it had been shorter, another would have begun where the text was
    still easy. So what windows of each depth brought is compared with what was expected of them.

    For the same reason a *fresh* window, before which there were no drafts, says too much of those that would follow
    it: it begins anywhere. Trials of several steps show how much less these bring.

    The requests that run are not all requests: a change in their texts is believed at once, and is gone with them.
    """

    def __init__(self, places: int, *, foretold: float = TOKENS) -> None:
        self._foretold = foretold
        self._places, self._all = ([Place() for _ in range(places)] for _ in range(2))
        for first in (self._places[0], self._all[0]):
            first.reached, first.kept = 2.0, 2 * PRIOR
        self._brought: dict[int, Brought] = {}
        self._series: dict[int, Series] = {}
        self._runs_of, self._runs = 0, 0.0  # drafts, and how many runs of such windows are remembered
        self._needed: dict[int, float] = {}  # windows for them, by drafts
        self._plain: list[float] = []  # what is plainly expected, once somebody asked

    def learn(
        self,
        windows: Counter[tuple[int, int]],
        *,
        fresh: bool = False,
        alike: bool = True,
        asked: int = 0,
    ) -> None:
        """By (drafts, accepted), rows of steps that had drafts. A draft that was planned, but that the drafter did
        not make, was not accepted.

        alike  the rows had as many, whatever was known of them; so they tell how many tokens so many drafts bring
        asked  those with fewer were to have so many, but their answers end: it is what so many bring there
        """
        reached, kept = [0] * len(self._places), [0] * len(self._places)
        by_depth: dict[int, tuple[int, int]] = {}
        for (drafts, accepted), count in windows.items():
            for number in range(accepted):
                kept[number] += count
            for number in range(min(drafts, accepted + 1)):
                reached[number] += count
            made = max(drafts, asked)
            others, tokens = by_depth.get(made, (0, 0))
            by_depth[made] = others + count, tokens + count * (1 + accepted)
        self._plain, surprised = [], False
        for number, place in enumerate(self._places):
            if reached[number]:
                self._all[number].gather(reached[number], kept[number], fresh=fresh)
            if surprised:  # nor is what was known of this place of any use
                place = self._places[number] = Place()
            surprised |= place.learn(reached[number], kept[number], fresh=fresh)
        if surprised or not alike:  # nothing like it was expected
            return
        expected = self._plainly_expected()
        for drafts, (count, tokens) in by_depth.items():
            here = self._shifted(expected[drafts], drafts, fresh=fresh)
            self._brought.setdefault(drafts, Brought(self._foretold)).learn(count, tokens, here)

    def learn_run(self, tokens: int, drafts: int, shorter: Iterable[int]) -> None:
        """So many came in windows of these drafts, until one was not as drafted: windows of fewer would have brought
        them too, each as many as it can."""
        if drafts != self._runs_of:
            self._runs_of, self._runs, self._needed = drafts, 0.0, {}
        keep = 1 - 1 / RUNS
        self._runs = self._runs * keep + 1
        for depth in (drafts, *shorter):
            self._needed[depth] = self._needed.get(depth, 0.0) * keep - (-tokens // (1 + depth))

    def compare(self, drafts: int, windows: int, tokens: int, *, fresh: bool) -> None:
        """Of windows that were made in a row, whatever the first of them brought."""
        series, kept = self._series.setdefault(drafts, Series()), tokens - windows
        (series.fresh if fresh else series.later).learn(windows, kept, windows * drafts - kept)

    def admit(self, part: float) -> None:
        """So many of the requests are new: they are taken to be like all there were."""
        self._plain = []
        for place, others in zip(self._places, self._all, strict=True):
            place.admit(part, others)

    @property
    def settled(self) -> bool:
        """The text has not changed for long, so what looks like a change is chance."""
        return self._places[0].reached >= SETTLED

    def rates(self) -> list[float]:
        """Of each place: accepted, if all before it are."""
        first, *later = self._places
        rates = [first.kept / first.reached]
        for place in later:
            rates.append((place.kept + LIKENESS * rates[-1]) / (place.reached + LIKENESS))
        return rates

    def expected(self) -> list[float]:
        """Tokens that a row gets from a step with 0, 1, 2, ... drafts, of many such steps."""
        tokens = self._plainly_expected().copy()
        for drafts, brought in self._brought.items():
            tokens[drafts] = brought.ratio * self._shifted(tokens[drafts], drafts, fresh=False)
        sure, most = self._runs / (self._runs + FEW_RUNS), self._runs_of
        for drafts, windows in self._needed.items():
            if drafts < most:
                told = tokens[most] * self._needed[most] / windows
                tokens[drafts] += sure * (min(max(1.0, told), 1.0 + drafts) - tokens[drafts])
        return tokens

    def _shifted(self, tokens: float, drafts: int, *, fresh: bool) -> float:
        """What is plainly expected is partly of fresh windows, and partly of later ones: of the one or the other."""
        series = self._series.get(drafts)
        if series is None or tokens >= 1 + drafts:
            return tokens
        first, ratio = self._places[0], series.ratio
        shift = 1 + first.fresh / first.reached * (ratio - 1)
        odds = (tokens - 1) / (1 + drafts - tokens) * (shift / ratio if fresh else shift)
        return 1 + drafts * odds / (1 + odds)

    def _plainly_expected(self) -> list[float]:
        if not self._plain:
            chances = accumulate(self.rates(), mul)
            self._plain = list(accumulate(chances, initial=1.0))
        return self._plain
