"""Steps that the cost policy has seen planned, and what it will learn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..plan import StepResult

LOOK, MEASURE = 1, 4
"""Steps in a row of a trial that looks, and of one that measures."""
WARM = 2
"""Steps without drafts after others, before they take what such steps do: caches are full of the drafter, and the
host has more to do. Trials of none are so much longer."""
LOOKED = -1
"""The account of looks."""


class Load(NamedTuple):
    """Rows of a step that choose a token, and what they know of before it."""

    rows: int
    context: int


class Trial(NamedTuple):
    """Of another depth than the one in use."""

    depth: int
    looks: bool
    """Whether drafts have become worth their while: there were none. Otherwise it measures what they take, and what
    several windows in a row bring."""
    longer: int = 0
    """Steps by which it is."""

    @property
    def account(self) -> int:
        """That pays for it: the depth's own, or that of looks."""
        return LOOKED if self.looks else self.depth

    @property
    def steps(self) -> int:
        if self.looks:
            return LOOK
        return MEASURE + self.longer + WARM * (not self.depth)


class Launched(NamedTuple):
    load: Load
    verified: int | None
    """Drafts that each row had. None: it did something else beside."""
    steady: bool
    """It made as many, so its time is that of this depth."""
    trial: Trial | None
    """It was made in it, or just before or after."""
    follows: bool = False
    """It was after: it takes longer for it, maybe, but what was tried is known without it."""
    fresh: bool = False
    """There were no drafts in the step before;"""
    compared: bool = False
    """and it is one of several in a row, whatever the first brought."""
    turned: bool = False
    """Those before it had another number, so it begins where such windows end."""


@dataclass
class Rest:
    """Steps that go on as one before them, while a decision holds: what they take is added up, and learned when they
    are over."""

    depth: int
    """Drafts that each row has."""
    longest: float
    """Seconds: no step counts for more."""
    load: Load

    def __post_init__(self) -> None:
        self.begin(self.load)

    def begin(self, load: Load) -> None:
        self.load = load
        self.steps, self.seconds, self.host = 0, 0.0, 0.0  # of the host as well
        self.timed, self.took = 0, 0.0  # of those for which the device did not wait for it
        self.tokens = 0

    def add(self, result: StepResult) -> None:
        seconds, longest = result.seconds, self.longest
        self.steps += 1
        self.seconds += seconds
        self.host += min(result.host_seconds, longest)
        if not result.starved:
            self.timed += 1
            self.took += min(seconds, longest)
