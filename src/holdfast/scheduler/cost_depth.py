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
from .step_costs import FIRST, StepCosts
from .survival import Survival

MARGIN, MARGIN_UNSURE = 1.01, 1.04
"""Another depth must promise so many times as much; one that was hardly tried, more."""
PROBING = 0.012
"""Of the time, so much is spent on drafts that are only to find out whether drafts have become worth their while."""
LEAST_PATIENCE, MOST_PATIENCE = 8, 64
"""Steps between two such probes."""
PROBED = 8
"""Rows that are asked, where a step costs by its tokens."""
REST, REST_WITHOUT_DRAFTS = 3, 31
"""Further steps for which a decision that changed nothing holds, if their number of rows does: steps on a GPU are
short, and the host must not take longer to decide than the device to compute."""
OWN_WEIGHT = 4.0
"""A request is taken to be like all of them until so many of its own drafts were reached."""
OWN_MEMORY = 32
UNLIKE = 1.04
"""Drafts are dealt out unevenly if that promises so many times as many tokens."""


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


class Deal:
    """Drafts for rows that have different chances: to the likeliest to be accepted, or as many for each if that is
    hardly worse. (What looks different is often chance; and the row with most is drafted for longest.)"""

    def __init__(self, rates: dict[Row, float], most: int) -> None:
        self._rows = list(rates)
        places = range(1, most + 1)
        ranked = sorted(((rate**place, row) for row, rate in rates.items() for place in places), reverse=True)
        self._ranked = [row for _, row in ranked]
        dealt = [0.0, *accumulate(chance for chance, _ in ranked)][:: len(rates)]
        alike = [0.0, *accumulate(sum(rate**place for rate in rates.values()) for place in places)]
        tokens = [(1 + n / len(rates), 1 + m / len(rates)) for n, m in zip(alike, dealt, strict=True)]
        self._unlike = [m > UNLIKE * n for n, m in tokens]
        self.expected = [m if m > UNLIKE * n else n for n, m in tokens]
        """Tokens that a row gets from a step with 0, 1, 2, ... drafts, on average over the rows."""

    def shares(self, depth: int) -> dict[Row, int]:
        """Of `depth` drafts for each row on average."""
        if not self._unlike[depth]:
            return dict.fromkeys(self._rows, depth)
        given = Counter(self._ranked[: depth * len(self._rows)])
        return {row: given[row] for row in self._rows}

    def few(self, depth: int) -> dict[Row, int]:
        """Enough of them to find out. Those that were asked in vain are not the likeliest next time."""
        asked = list(dict.fromkeys(self._ranked))[:PROBED]
        return dict.fromkeys(self._rows, 0) | dict.fromkeys(asked, depth)


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
        self._rows: list[RowWork] = []
        self._flight: dict[int, Launched] = {}
        self._shares: dict[Row, int] = {}
        self._patience = 0  # steps without drafts
        self._until_probe = 0
        self._excess = 1.0  # time that a probe adds to a step, in steps
        self._expected = self._survival.expected()
        self._windows: list[tuple[int, int]] = []  # drafts and accepted ones, not learned from yet
        self._rest = 0  # further steps for which the decision holds
        self._resting = False
        self._only_windows = True
        self._trial = self._trial_rows = 0  # further steps by which something is found out

    # --- deciding ---

    def decide(self) -> int:
        if not self._load.rows:
            return self.depth
        self._resting = self._rest > 0
        if self._resting:
            self._rest -= 1
            return self.depth
        if self._trial and self._load.rows == self._trial_rows:
            self._trial -= 1
            return max(self._shares.values(), default=self.depth)
        self._learn_windows()
        deal = self._deal() if self._ragged else None
        self._expected = deal.expected if deal else self._survival.expected()
        before = self.depth
        self.depth, self.reason = self._best()
        if not self.depth and (probe := self._probe()):
            self.depth, self.reason = probe, "probe"
        if not self._ragged and self.reason == "best" and self.depth == before:
            self._rest = REST if self.depth else min(REST_WITHOUT_DRAFTS, self._until_probe)
        self._trial = FIRST - 1 if self.reason == "explore" else 0
        self._trial_rows = self._load.rows
        if deal:
            self._shares = deal.few(self.depth) if self.reason == "probe" else deal.shares(self.depth)
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

    def _promises(self, *, at_best: bool = False) -> dict[int, float]:
        """Tokens a second of all rows, for each candidate; at best: if steps are as short as they may be."""
        load, rates = self._load, {}
        seconds_of = self._costs.least if at_best else self._costs.seconds
        for depth in self._config.depths(load.rows):
            seconds = seconds_of(load.rows, depth, load.context)
            rates[depth] = load.rows * self._expected[depth] / seconds if seconds else math.inf
        return rates

    def _best(self) -> tuple[int, str]:
        """If nothing is known of it, one with fewer drafts of which nothing is known comes first: it bounds what
        more cost, and may show that they need not be tried."""
        rates = self._promises(at_best=True)
        best = max(rates, key=lambda depth: rates[depth])
        now = self.depth if self.reason != "probe" else 0
        margin = MARGIN if self._costs.sure(self._load.rows, best) else MARGIN_UNSURE
        if now in rates and rates[best] <= margin * rates[now] < math.inf:
            best = now
        known = [depth for depth in rates if self._costs.known(self._load.rows, depth)]
        if best in known:
            return best, "best" if self._costs.sure(self._load.rows, best) else "explore"
        if self._costs.foreseen(self._load.rows, best):
            return best, "explore"
        below = max((depth for depth in known if depth < best), default=-1)
        return min(depth for depth in rates if depth > below), "explore"

    def _probe(self) -> int:
        """The fewest drafts there are, if it is time to try some, and accepted drafts would pay."""
        load, deeper = self._load, [d for d in self._config.depths(self._load.rows) if d]
        self._until_probe = REST_WITHOUT_DRAFTS
        if not deeper or self.reason != "best":
            return 0
        none, *costs = (self._costs.seconds(load.rows, d, load.context) for d in (0, *deeper))
        if all((1 + depth) * none <= MARGIN * cost for depth, cost in zip(deeper, costs, strict=True)):
            return 0
        if not self._costs.known(load.rows, deeper[0]):
            return deeper[0]  # how patient to be is not known either
        self._excess = costs[0] / none - 1
        asked = min(1.0, PROBED / load.rows) if self._ragged else 1.0
        patience = min(MOST_PATIENCE, max(LEAST_PATIENCE, self._excess * asked / PROBING))
        self._until_probe = max(0, math.ceil(patience) - self._patience - 1)
        return deeper[0] if self._patience >= patience else 0

    def _deal(self) -> Deal:
        rates = self._survival.rates()
        mean = sum(rates) / len(rates)
        return Deal({work.row: self._rate(work, mean) for work in self._rows}, self._most)

    def _rate(self, work: RowWork, mean: float) -> float:
        own = self._own.get(work.row)
        if own is None or own.generation != work.generation:
            return mean
        return (own.kept + OWN_WEIGHT * mean) / (own.reached + OWN_WEIGHT)

    # --- learning ---

    def planned(self, plan: StepPlan) -> None:
        super().planned(plan)
        self._patience = 0 if plan.propose else self._patience + 1
        if self._resting and len(plan.work) == self._load.rows:
            as_decided = plan.work[0].window.drafts == self.depth
            self._flight[plan.step] = Launched(self._load, self.depth, as_decided)
            return
        if self._resting:
            self._rest = 0
        rows = context = drafts = longest = 0
        for (_, _, tokens, window), position in zip(plan.work, plan.positions, strict=True):
            if tokens == 1 + window.drafts and window.bonus:
                rows, context, drafts = rows + 1, context + position, drafts + window.drafts
                longest = max(longest, window.drafts)
        if rows:
            self._load = Load(rows, context)
        if rows and self._ragged:
            self._rows = [work for work in plan.work if work.tokens == 1 + work.window.drafts and work.sample]
        verified = drafts / max(1, rows) if self._ragged else longest
        only_windows = rows == len(plan.work) and not plan.starts
        steady = self._only_windows and only_windows and abs(verified - self.depth) < 0.25
        self._only_windows = only_windows  # else the next step waits for what the host did beside them
        self._flight[plan.step] = Launched(self._load, self.depth, steady)

    def collected(self, result: StepResult) -> None:
        launched = self._flight.pop(result.step)
        if launched.steady:
            load = launched.load
            self._costs.learn(load.rows, launched.depth, load.context, result.seconds)
        rows = zip(result.work, result.tokens, strict=True)
        verified = [(work, len(tokens) - 1) for work, tokens in rows if work.window.drafts]
        self._windows += [(work.window.drafts, accepted) for work, accepted in verified]
        if self._windows and not self.depth:
            self._rest = 0  # what a probe found is not left lying
        if self._ragged:
            for work, accepted in verified:
                self._learn_own(work.row, work.generation, work.window.drafts, accepted)

    def _learn_windows(self) -> None:
        windows, self._windows = self._windows, []
        if windows:
            self._survival.learn(windows)
            if sum(accepted > 0 for _, accepted in windows) > self._excess * len(windows):
                self._patience = MOST_PATIENCE  # a probe that would have paid: another follows at once

    def _learn_own(self, row: Row, generation: int, drafts: int, accepted: int) -> None:
        own = self._own.get(row)
        if own is None or own.generation != generation:
            own = self._own[row] = Own(generation)
        reached = min(drafts, accepted + 1)
        keep = 1 - min(1.0, reached / OWN_MEMORY)
        own.reached, own.kept = own.reached * keep + reached, own.kept * keep + accepted
