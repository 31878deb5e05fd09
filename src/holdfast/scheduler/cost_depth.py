"""Most tokens a second: what a step of each depth brings, by the drafts accepted lately, over what it takes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from ..adaptive import AdaptiveConfig
from ..ids import Row
from ..plan import RowWork, StepPlan, StepResult
from .depth import Depth
from .step_costs import StepCosts
from .survival import Survival

MARGIN = 1.01
"""Another depth must promise so many times as much."""
PROBING = 0.012
"""Of the time, so much is spent on drafts that are only to find out whether drafts have become worth their while."""
LEAST_PATIENCE, MOST_PATIENCE = 8, 64
"""Steps between two such probes."""
OWN_WEIGHT = 4.0
"""A request is taken to be like all of them until so many of its own drafts were reached."""
OWN_MEMORY = 32


@dataclass(frozen=True)
class Load:
    """Rows of a step that choose a token, and what they know of before it."""

    rows: int
    context: int


@dataclass(frozen=True)
class Launched:
    load: Load
    depth: int
    """That it was decided to make drafts for."""
    steady: bool
    """It verified as many as it proposed, and did nothing else: its time is that of this depth."""


@dataclass
class Own:
    """Drafts of one request that were reached, and accepted."""

    generation: int
    reached: float = 0.0
    kept: float = 0.0


class CostDepth(Depth):
    """The cost is a staircase, so all candidates are compared. A candidate of which nothing is known is taken to be
    as cheap as it can be: if it is the best even so, it is tried, and then it is known.

    ragged  a step costs by its tokens, so that its drafts go where they are likeliest to be accepted
    """

    def __init__(self, config: AdaptiveConfig, initial: int, *, ragged: bool) -> None:
        super().__init__(initial)
        self._config, self._ragged = config, ragged
        self._most = max(config.all_depths)
        self._costs, self._survival = StepCosts(), Survival(self._most)
        self._own: dict[Row, Own] = {}
        self._load = Load(0, 0)
        self._rows: tuple[RowWork, ...] = ()
        self._flight: dict[int, Launched] = {}
        self._shares: dict[Row, int] = {}
        self._patience = 0  # steps without drafts
        self._excess = 1.0  # time that a probe adds to a step, in steps
        self._expected = self._survival.expected()

    # --- deciding ---

    def decide(self) -> int:
        if not self._load.rows:
            return self.depth
        ranked = self._ranked() if self._ragged else None
        self._expected = self._survival.expected() if ranked is None else self._expected_of(ranked)
        self.depth, self.reason = self._best()
        if not self.depth and (probe := self._probe()):
            self.depth, self.reason = probe, "probe"
        if ranked is not None:
            given = Counter(row for _, row in ranked[: self.depth * self._load.rows])
            self._shares = {work.row: given[work.row] for work in self._rows}
        return max(self._shares.values(), default=self.depth)

    def share(self, row: Row) -> int:
        return self._shares.get(row, self.depth)

    def why(self) -> str:
        rows, rates = self._load.rows, self._promises()
        told = ", ".join(f"{depth}: {self._told(depth, rate)}" for depth, rate in rates.items())
        return f"{self.depth} drafts ({self.reason}); tokens/s of {rows} rows with so many drafts: {told}"

    def _told(self, depth: int, rate: float) -> str:
        if math.isinf(rate):
            return "unknown"
        return f"{rate:.0f}" if self._costs.known(self._load.rows, depth) else f"at most {rate:.0f}"

    def _promises(self) -> dict[int, float]:
        """Tokens a second of all rows, for each candidate."""
        load, rates = self._load, {}
        for depth in self._config.depths(load.rows):
            seconds = self._costs.seconds(load.rows, depth, load.context)
            rates[depth] = load.rows * self._expected[depth] / seconds if seconds else math.inf
        return rates

    def _best(self) -> tuple[int, str]:
        """If nothing is known of it, one with fewer drafts of which nothing is known comes first: it bounds what
        more cost, and may show that they need not be tried."""
        rates = self._promises()
        best = max(rates, key=lambda depth: rates[depth])
        now = self.depth if self.reason != "probe" else 0
        if now in rates and rates[best] <= MARGIN * rates[now] < math.inf:
            best = now
        known = [depth for depth in rates if self._costs.known(self._load.rows, depth)]
        if best in known:
            return best, "best"
        below = max((depth for depth in known if depth < best), default=-1)
        return min(depth for depth in rates if depth > below), "explore"

    def _probe(self) -> int:
        """The fewest drafts there are, if it is time to try some, and accepted drafts would pay."""
        load, deeper = self._load, [d for d in self._config.depths(self._load.rows) if d]
        if not deeper or self.reason != "best":
            return 0
        none, *costs = (self._costs.seconds(load.rows, d, load.context) for d in (0, *deeper))
        if all((1 + depth) * none <= MARGIN * cost for depth, cost in zip(deeper, costs, strict=True)):
            return 0
        if not self._costs.known(load.rows, deeper[0]):
            return deeper[0]  # how patient to be is not known either
        self._excess = costs[0] / none - 1
        patience = min(MOST_PATIENCE, max(LEAST_PATIENCE, self._excess / PROBING))
        return deeper[0] if self._patience >= patience else 0

    def _ranked(self) -> list[tuple[float, Row]]:
        """All drafts that could be made, the likeliest to be accepted first: its chance, and whose it is."""
        rates = self._survival.rates()
        mean = sum(rates) / len(rates)
        chances = [
            (rate**place, work.row)
            for work in self._rows
            for rate in [self._rate(work, mean)]
            for place in range(1, self._most + 1)
        ]
        return sorted(chances, reverse=True)

    def _expected_of(self, ranked: list[tuple[float, Row]]) -> list[float]:
        """As `Survival.expected`, if a step with so many drafts for each row makes the likeliest ones."""
        gained = [0.0, *accumulate(chance for chance, _ in ranked)]
        return [1 + gained[depth * self._load.rows] / self._load.rows for depth in range(self._most + 1)]

    def _rate(self, work: RowWork, mean: float) -> float:
        own = self._own.get(work.row)
        if own is None or own.generation != work.generation:
            return mean
        return (own.kept + OWN_WEIGHT * mean) / (own.reached + OWN_WEIGHT)

    # --- learning ---

    def planned(self, plan: StepPlan) -> None:
        super().planned(plan)
        self._patience = 0 if plan.propose else self._patience + 1
        rows = tuple(work for work in plan.work if work.tokens == 1 + work.window.drafts and work.sample)
        if rows:
            self._rows = rows
            self._load = Load(len(rows), sum(work.position for work in rows))
        drafts = [work.window.drafts for work in rows]
        verified = sum(drafts) / max(1, len(rows)) if self._ragged else max(drafts, default=0)
        steady = len(rows) == len(plan.work) and abs(verified - self.depth) < 0.25
        self._flight[plan.step] = Launched(self._load, self.depth, steady)

    def collected(self, result: StepResult) -> None:
        launched = self._flight.pop(result.step)
        load = launched.load
        if launched.steady:
            self._costs.learn(load.rows, launched.depth, load.context, result.seconds)
        windows = [(row.window.drafts, len(row.tokens) - 1) for row in result.rows if row.window.drafts]
        if windows:
            self._survival.learn(windows)
            if sum(accepted > 0 for _, accepted in windows) > self._excess * len(windows):
                self._patience = MOST_PATIENCE  # a probe that would have paid: another follows at once
        if self._ragged:
            for row in result.rows:
                if row.window.drafts:
                    self._learn_own(row.row, row.generation, row.window.drafts, len(row.tokens) - 1)

    def _learn_own(self, row: Row, generation: int, drafts: int, accepted: int) -> None:
        own = self._own.get(row)
        if own is None or own.generation != generation:
            own = self._own[row] = Own(generation)
        reached = min(drafts, accepted + 1)
        keep = 1 - min(1.0, reached / OWN_MEMORY)
        own.reached, own.kept = own.reached * keep + reached, own.kept * keep + accepted
