"""Most tokens a second: what a step of each depth brings, by the drafts accepted lately, over what it takes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from ..adaptive import AdaptiveConfig
from ..ids import Row
from ..plan import RowWork, StepPlan, StepResult
from .deal import Chances, Deal
from .depth import Depth
from .launched import LOOKED, WARM, Launched, Load, Rest, Trial
from .quiet import Quiet, rarer
from .runs import Runs
from .step_costs import FORESEEN, INTERRUPTED, SEEN, Belief, StepCosts, band
from .survival import SOONER, TOKENS, Survival

MARGIN, BEGIN = 1.01, 1.03
"""Another depth must promise so many times as much; and drafts, where none are made and the text is what it was for
long: few windows tell of them, and the best of many looks is luck."""
LOOKING, MEASURING = 0.008, 0.003
"""Of the time, so much may be lost, where no drafts are made, by looking whether they have become worth their while,
and by measuring what steps of other depths take; where drafts are made, all of it by measuring."""
OWED, SPARED = 0.5, 0.25
"""Where no drafts are made, an account that owes more than half a step gets a quarter of its part: if trials lose
more than their windows do, because drafters have to catch up or the device waits for the host, there are fewer."""
MEASURED = 64
"""Steps of a depth, after which it is measured less, the oftener it was seen."""
LONGER, LONGEST = 2, 20
"""Steps by which trials are longer where device and host are one: with many rows, and with one."""
AFTER = 3
"""Steps after a trial, which may take longer for it."""
DISTURBED = 4.0
"""Times as long as others, at most, if the device waits for the host then."""
OFTEN, NEW, FAR = 16, 2.0, 0.1
"""Until a depth was seen so many times, twice its part is paid for measuring it, where drafts are made: the machine
may have been slow by chance. After that the less, but a tenth at least, the less it promises than the one in use: it
would have to have become much faster to matter."""
UNSURE = 0.5
"""Of what a trial loses, enough for one of a depth that was seen a few times only."""
SAME = 4
"""Steps with as many rows, before something is tried that was only seen with more or fewer."""
REST, REST_AT_MOST, REST_WITHOUT_DRAFTS = 3, 15, 511
"""Further steps for which a decision that changed nothing holds, if their number of rows does: the first time, after
several, and where no drafts are made. The host must not take longer to decide than the device to compute."""
UNEXPECTED = 3.0
"""Standard deviations, at most, by which the tokens of steps must differ from those expected to end that early."""
TIMED = 16
"""For the same reason it is what steps take on average that is learned while a decision holds: with drafts, as if it
were of one step; without, of so many, and after that nobody thinks until it is over."""


class CostDepth(Depth):
    """The cost is a staircase, so all candidates are compared. A candidate of which nothing is known is taken to be
    as cheap as it can be: if it is the best even so, it is tried, and then it is known.

    What is known of the others grows old while one is in use. So each has an account, into which a small part of all
    time is paid. When that is enough for what a trial is expected to lose there is one, and what it took beyond what
    it brings is taken from the account, with what steps around it took longer: what it brings on average; but a look
    what it did bring, so that one that gains is followed by another at once.

    ragged  a step costs by its tokens, so that its drafts go where they are likeliest to be accepted
    """

    def __init__(self, config: AdaptiveConfig, initial: int, *, ragged: bool) -> None:
        super().__init__(initial)
        self._config, self._ragged = config, ragged
        self._depths = config.all_depths
        self._most = max(self._depths)
        self._costs = StepCosts(shared=ragged)
        self._survival = Survival(self._most, foretold=SOONER if ragged else TOKENS)
        self._chances, self._runs = Chances(), Runs()
        self._load = Load(0, 0)
        self._same = 0  # steps with as many rows,
        self._alike = 0  # or about as many
        self._announced = 0  # rows, who have not come yet
        self._rows: list[RowWork] = []  # if they may have different numbers of drafts
        self._flight: dict[int, Launched | Rest] = {}
        self._shares: dict[Row, int] = {}
        self._expected = self._survival.expected()
        self._windows = {fresh: Counter[tuple[int, int]]() for fresh in (True, False)}
        """Drafts and accepted ones, not learned from yet,"""
        self._gathered = 0  # of steps that were to have so many
        self._learned = False  # in the step before
        self._settled = initial  # the best that is known,
        self._speed = 0.0  # and tokens a second that it promises,
        self._settled_with: dict[int, int] = {}  # and what it was when there last were so many rows, by band
        self._accounts: dict[int, dict[int, float]] = {}  # seconds, by band of rows and depth
        self._quiet = Quiet()
        self._looked_at = 0  # of settled 0, the depth that shows whether drafts are worth it,
        self._awaited = 0  # and the step that will show it
        self._rests = 0  # steps of the last rest
        self._unexpected, self._steps_rested = 0.0, 0  # tokens that its steps brought more than expected
        self._holds = 0  # further steps for which the decision holds,
        self._decided_rows = 0  # with so many rows
        self._held = False
        self._resting: Rest | None = None  # now, or until a moment ago
        self._sleeps = 0  # further steps of it,
        self._awake = 0  # and the last one before those
        self._beliefs: dict[int, Belief] = {}  # of each candidate's time, when that was decided
        self._earned = 0.0  # seconds of which the accounts have not had their part yet
        self._tried, self._after = Trial(initial, False), 0  # the last, and further steps that are its
        self._without = 0  # steps without drafts, one after the other
        self._verified: int | None = None  # in the step before,
        self._longest = self._asked = 0  # and the most of a row, and what the step before was asked for
        self._compared = False  # its windows were
        self._plan: StepPlan | None = None  # not thought over yet,
        self._results: list[tuple[Launched, StepResult]] = []  # nor are these
        self._proposes, self._chosen = initial, False  # for the next plan

    def planned(self, plan: StepPlan) -> None:
        super().planned(plan)
        if self._sleeps:
            if len(plan.work) == self._decided_rows and not plan.starts:
                return
            self._sleeps = 0
        if self._awake:
            self._wake(plan.step)
        self._plan = plan

    def collected(self, result: StepResult) -> None:
        launched = self._flight.pop(result.step, None)
        if launched is None:
            return  # nobody was awake
        if isinstance(launched, Rest):
            launched.add(result)
            if launched.depth:
                self._look_out(launched, result)
        else:
            self._results.append((launched, result))

    def think(self) -> None:
        """Of a depth that was unknown the next result is worth waiting for."""
        if not self._sleeps and not self._rests_on():
            self._learn()
            self._chosen = self.reason in ("best", "probe")
            if self._chosen:
                self._choose()

    def _rests_on(self) -> bool:
        """The step is one of a rest, and so is the next; there is nothing to learn from."""
        plan, rest = self._plan, self._resting
        if self._holds <= 1 or rest is None or plan is None or self._results:
            return False
        if not self._held or not self._goes_on(plan):
            return False
        self._same += 1
        self._alike += 1
        self._holds -= 1
        self._flight[plan.step], self._plan, self._chosen = rest, None, True
        if rest.steps >= TIMED and not rest.depth:
            self._sleeps, self._awake, self._holds = self._holds, plan.step, 1
        return True

    def _wake(self, step: int) -> None:
        """step: the first that was planned since"""
        rest, slept = self._resting, step - 1 - self._awake
        assert rest is not None
        rows = rest.load.rows
        self._learn_rest()
        self._awake = 0
        self._same += slept
        self._alike += slept
        self._earned += slept * self._beliefs[0].seconds
        self._load = rest.load = Load(rows, rest.load.context + slept * rows)

    # --- deciding ---

    def expect(self, rows: int, *, joining: int) -> None:
        """What holds was decided for more or fewer, and those who run no longer say nothing of these. Once: they may
        have to wait."""
        before = self._load.rows
        if not before or band(rows) == band(before) or rows == self._announced:
            return
        self._announced = rows
        self._learn()
        if joining == rows:
            self._survival.admit(1.0)
        self._load = Load(rows, self._load.context * rows // before)
        self._same = self._alike = self._sleeps = self._holds = self._awaited = 0
        self._rows, self._shares = [], {}  # nothing is known of theirs
        self._choose()
        self._chosen = True

    def decide(self) -> int:
        if self._sleeps:
            self._sleeps -= 1
            return 0
        if not self._chosen:
            self._learn()
            self._choose()
        self._chosen = False
        return self._proposes

    def _choose(self) -> None:
        if not self._load.rows:
            return
        self._held = self._holds > 0 and self._load.rows == self._decided_rows
        if self._held:
            self._holds -= 1
            if not self._holds:  # in a step of its own: the device would have to wait for one that takes long
                self._learn_windows()
                self._learned = True
            return
        if self._awaited and not self._settled:  # until then nothing else is tried
            self.depth, self.reason, self._proposes, self._shares = 0, "best", 0, {}
            return
        if not self._learned:
            self._learn_windows()
        self._learned = False
        deal = self._deal() if self._rows else None
        self._expected = deal.expected if deal else self._survival.expected()
        before, self._decided_rows = self._settled, self._load.rows
        rates = self._settle()
        self.depth, self._holds = self._settled, 0
        if self.reason == "explore":
            self._holds = self._measuring(self.depth).steps - 1
        elif self.depth != before:  # the last windows of the one before are still to come
            self._rests = 0
        elif self._alike >= SAME and (trial := self._due(rates)) is not None:
            self.depth, self.reason, self._tried = trial.depth, "probe", trial
            self._holds = trial.steps - 1
        elif self.depth:
            self._holds = self._rest()
        else:
            self._holds = min(REST_WITHOUT_DRAFTS, self._until_look(rates)) if self._alike >= SAME else SAME
        if deal:
            looks = self.reason == "probe" and self._tried.looks
            self._shares = deal.few(self.depth) if looks else deal.shares(self.depth)
        self._proposes = max(self._shares.values(), default=self.depth)

    def share(self, row: Row) -> int:
        return self._shares.get(row, self.depth) if self._shares else self.depth

    def why(self) -> str:
        rows, beliefs = self._load.rows, self._believed()
        rates = self._promises(beliefs)
        told = ", ".join(f"{depth}: {_told(rates[depth], beliefs[depth].known)}" for depth in rates)
        return f"{self.depth} drafts ({self.reason}); tokens/s of {rows} rows with so many drafts: {told}"

    def _believed(self) -> dict[int, Belief]:
        rows, context = self._load
        return self._costs.beliefs(rows, self._config.depths(rows), context)

    def _promises(self, beliefs: dict[int, Belief]) -> dict[int, float]:
        """Tokens a second of all rows, for each candidate."""
        rows, expected = self._load.rows, self._expected
        return {
            depth: rows * expected[depth] / belief.seconds if belief.seconds else math.inf
            for depth, belief in beliefs.items()
        }

    def _settle(self) -> dict[int, float]:
        """On the best. What each promises."""
        here = band(self._load.rows)
        if self._alike < SAME:  # what was in use was best for others
            self._settled = self._settled_with.get(here, self._settled)
        self._beliefs = self._believed()
        rates = self._promises(self._beliefs)
        self._pay(rates)
        self._settled, self.reason = self._best(rates)
        self._settled_with[here] = self._settled
        self._speed = rates[self._settled]
        self._looked_at = 0 if self._settled or self.reason == "explore" else self._best_look()
        return rates

    def _pay(self, rates: dict[int, float]) -> None:
        measuring = (MEASURING if self._looked_at else LOOKING + MEASURING) / len(self._depths)
        accounts, settled = self._accounts_of(self._load.rows), self._settled
        if (usual := self._beliefs.get(settled)) and usual.seconds:
            self._quiet.count(band(self._load.rows), self._earned / usual.seconds, drafts=settled > 0)
        for account in (settled, LOOKED) if settled else (settled,):
            accounts[account] = max(0.0, accounts[account])  # it was worth what it owes
        for depth in rates.keys() - {settled}:
            self._pay_into(depth, measuring * self._worth_measuring(depth, rates))
        if self._looked_at:
            self._pay_into(LOOKED, LOOKING * self._vigilance)
        self._earned = 0.0

    @property
    def _vigilance(self) -> float:
        return self._quiet.vigilance(band(self._load.rows))

    def _pay_into(self, account: int, part: float) -> None:
        accounts = self._accounts_of(self._load.rows)
        owes = self._looked_at > 0 and accounts[account] < -OWED * self._beliefs[0].seconds
        accounts[account] += self._earned * part * (SPARED if owes else 1.0)

    def _worth_measuring(self, depth: int, rates: dict[int, float]) -> float:
        """So many times the part that is due to each."""
        seen = self._beliefs[depth].steps
        if seen < OFTEN and not self._looked_at:
            return NEW
        promises = max(FAR, min(1.0, rates[depth] / self._speed) ** 4) if self._speed else 1.0
        part = rarer(seen, MEASURED)
        return promises * (min(part, self._vigilance) if self._looked_at and seen >= OFTEN else part)

    def _accounts_of(self, rows: int) -> dict[int, float]:
        return self._accounts.setdefault(band(rows), defaultdict(float))

    def _best(self, rates: dict[int, float]) -> tuple[int, str]:
        """If nothing is known of it, one with fewer drafts of which nothing is known comes first: it bounds what
        more cost, and may show that they need not be tried."""
        now, beliefs, hopes = self._settled, self._beliefs, self._hopes()
        if self._alike < SAME:  # what is unknown would be so still when that many rows are gone
            rates = {d: r for d, r in rates.items() if beliefs[d].known or beliefs[d].foreseen} or rates
        at_best = rates | {depth: rates[depth] / hope for depth, hope in hopes.items()}
        best = max(at_best, key=at_best.__getitem__)
        begins = not now and beliefs[best].sure and self._survival.settled
        margin = BEGIN if begins else MARGIN
        if now in rates and at_best[best] <= margin * rates[now] < math.inf:
            best = now
        if best in hopes:
            return best, "explore"
        if beliefs[best].known or beliefs[best].foreseen:
            return best, "best"
        below = max((depth for depth in rates if depth < best and beliefs[depth].known), default=-1)
        return min(depth for depth in rates if depth > below), "explore"

    def _hopes(self) -> dict[int, float]:
        """Of those that were seen a few times only, or with more or fewer rows: how much of the time that this
        suggests they may take at best. While the number of rows changes, it is not the moment to find out."""
        if self._alike < SAME:
            return {}
        just = self.depth if self.reason == "explore" else None  # the steps that tell are still to come
        return {
            depth: SEEN if belief.known else FORESEEN
            for depth, belief in self._beliefs.items()
            if not belief.sure and (belief.known or belief.foreseen) and depth != just
        }

    def _due(self, rates: dict[int, float]) -> Trial | None:
        """One that may be made now. Of depths that were never seen only the first, and if there is no other."""
        if self._tries:
            return None  # what the last one costs is not known yet
        due, beliefs, accounts = None, self._beliefs, self._accounts_of(self._load.rows)
        others = [depth for depth in rates if depth != self._settled]
        seen = [depth for depth in others if beliefs[depth].known or beliefs[depth].foreseen]
        trials = [self._measuring(depth) for depth in seen or others[:1]]
        if self._looked_at:
            trials.append(Trial(self._looked_at, True))
        for trial in trials:
            loses = self._loses(trial, rates)
            if accounts[trial.account] >= (loses if beliefs[trial.depth].sure else UNSURE * loses):
                due = trial
            accounts[trial.account] = min(loses, accounts[trial.account])
        return due

    def _measuring(self, depth: int) -> Trial:
        """Where times differ much it takes longer; with few rows longest, because it begins where windows of another
        depth have failed, and that must not count for much."""
        return Trial(depth, False, max(LONGER, LONGEST // self._load.rows) if self._ragged else 0)

    def _loses(self, trial: Trial, rates: dict[int, float]) -> float:
        """Seconds, as is believed."""
        return trial.steps * self._beliefs[trial.depth].seconds * (1 - rates[trial.depth] / self._speed)

    @property
    def _tries(self) -> bool:
        """Steps that show what was tried are under way, or still to come."""
        flight = (step for step in self._flight.values() if isinstance(step, Launched))
        return self._after == AFTER or any(step.trial is not None and not step.follows for step in flight)

    def _best_look(self) -> int:
        """The fewest drafts by which, for the time that they take, about as much as by any could be gained. 0: there
        are none."""
        none, worth = self._beliefs[0].seconds, {}
        for depth, belief in self._beliefs.items():
            if depth and belief.known:
                longer = belief.seconds / none
                worth[depth] = ((1 + depth) / longer - 1) / max(0.01, longer - 1)
        return min((depth for depth in worth if worth[depth] >= max(worth.values()) / 2), default=0)

    def _rest(self) -> int:
        self._rests = min(REST_AT_MOST, 2 * self._rests + 1) if self._rests else REST
        self._unexpected, self._steps_rested = 0.0, 0
        return self._rests

    def _until_look(self, rates: dict[int, float]) -> int:
        """Steps without drafts before there is enough for one, or it has paid what it owes."""
        if not self._looked_at:
            return REST_WITHOUT_DRAFTS
        has, step = self._accounts_of(self._load.rows)[LOOKED], self._beliefs[0].seconds
        debt = -OWED * step - has
        missing = debt / SPARED if debt > 0 else self._loses(Trial(self._looked_at, True), rates) - has
        return max(0, math.ceil(missing / (LOOKING * self._vigilance * step)) - 1)

    def _deal(self) -> Deal:
        rates = self._survival.rates()
        mean = sum(rates) / len(rates)
        chances = {work.row: self._chances.of(work, mean) for work in self._rows}
        return Deal(chances, self._survival.expected())

    # --- learning ---

    def _learn(self) -> None:
        for launched, result in self._results:
            self._learn_result(launched, result)
        self._results.clear()
        self._learn_rest()
        if self._plan is not None:  # made when those were known
            self._learn_plan(self._plan)
            self._plan = None

    def _learn_plan(self, plan: StepPlan) -> None:
        if self._held and self._resting and self._goes_on(plan):
            self._same += 1
            self._alike += 1
            self._flight[plan.step] = self._resting
            return
        if plan.starts and plan.work:
            self._announced = 0
            self._learn_windows()
            self._survival.admit(min(1.0, len(plan.starts) / len(plan.work)))
        before, longest = self._verified, self._longest
        verified = self._observe(plan)
        whole = verified == self._longest
        # what a step takes depends on the drafts that were made for it; where graphs are launched, the next one's too
        steady = verified is not None and (
            (whole and verified == self.depth) or (self._ragged and verified > 0)
        )
        steady = steady and (verified != 0 or self._without >= WARM)
        self._without = self._without + 1 if verified == 0 else 0
        steady = steady and self._same > 0  # the first with other rows has more to prepare
        if self.reason != "best":
            self._after = AFTER if self.reason == "probe" else 0
            self._awaited = plan.step + 1 if self._after and self._tried.looks else 0
        trial, follows = self._tried if self._after else None, 0 < self._after < AFTER
        if self.reason == "best":
            self._after = max(0, self._after - 1)
        fresh = self._longest > 0 and not longest
        again = self._compared and verified == before
        compared = trial is not None and bool(verified) and (again or (fresh and not trial.looks))
        self._compared, self._verified, self._asked = compared and whole, verified, plan.propose
        turned = self._ragged and not fresh and verified != before
        launched = Launched(self._load, verified, steady, trial, follows, fresh, self._compared, turned)
        self._flight[plan.step] = launched
        self._resting = None
        if verified is not None and steady and self.reason == "best" and trial is None and not self._ragged:
            self._resting = Rest(verified, INTERRUPTED * self._beliefs[verified].seconds, self._load)

    def _goes_on(self, plan: StepPlan) -> bool:
        """As before, by the first row: there is no time to look at all of them."""
        alike = len(plan.work) == self._load.rows and not plan.starts
        return alike and plan.work[0].window.drafts == self.depth

    def _observe(self, plan: StepPlan) -> int | None:
        """Rows that will choose in the next step; and how many drafts each of this one has, if all are windows."""
        choosing = [
            (work, at) for work, at in zip(plan.work, plan.positions, strict=True) if work.window.bonus
        ]
        rows = len(choosing)
        if rows:
            self._same = self._same + 1 if rows == self._load.rows else 0
            self._alike = self._alike + 1 if band(rows) == band(self._load.rows) else 0
            self._load = Load(rows, sum([at for _, at in choosing]))
        if rows and self._ragged:
            self._rows = [work for work, _ in choosing]
        drafts = [window.drafts for (_, _, tokens, window), _ in choosing if tokens == 1 + window.drafts]
        longest = self._longest = max(drafts, default=0)
        if len(drafts) < len(plan.work) or plan.starts:
            return None
        if self._ragged and sum(drafts) < (longest - 0.25) * rows:
            return None  # dealt out unevenly
        if 0 < longest < self._asked:  # an answer ends: it takes and brings what so many do there
            return self._asked
        return longest if longest == self._asked else None

    def _learn_result(self, launched: Launched, result: StepResult) -> None:
        if result.step >= self._awaited:
            self._awaited = 0
        if launched.verified is not None:
            self._settle_accounts(launched, result)
        if launched.steady:
            assert launched.verified is not None
            kind = launched.load.rows, launched.verified, launched.load.context
            self._costs.learn(*kind, result.seconds, result.host_seconds, starved=result.starved)
        if launched.verified == 0:
            return
        windows = _windows(result)
        if not windows:
            return
        if launched.verified is None or launched.turned:
            self._learn_windows()
            self._survival.learn(windows, fresh=launched.fresh, alike=False)
        else:
            self._gather(windows, launched.verified, fresh=launched.fresh)
        if launched.compared and launched.verified:
            brought = sum(map(len, result.tokens))
            self._survival.compare(launched.verified, len(result.work), brought, fresh=launched.fresh)
        if not self.depth and self.reason == "best":  # what a look found is not left lying,
            gains = sum(map(len, result.tokens)) > self._speed * result.seconds
            self._holds = 0 if gains else AFTER  # but without haste: the host has just had more to do
            self._learned = False
        if self._ragged:
            for work, tokens in zip(result.work, result.tokens, strict=True):
                if work.window.drafts:
                    self._chances.learn(work, len(tokens) - 1)
                    if verified := launched.verified:
                        self._learn_run(self._runs.ended(work, len(tokens), verified), verified)

    def _learn_run(self, tokens: int, drafts: int) -> None:
        """What shorter windows would have brought. Long ones say too little of it: each that fails begins anew where
        the text is hard, and so most of them do."""
        if tokens:
            self._survival.learn_run(tokens, drafts, [depth for depth in self._depths if 0 < depth < drafts])

    def _learn_rest(self) -> None:
        rest = self._resting
        if rest is None or not rest.steps:
            return
        rows, context = rest.load
        tokens = rest.tokens or rest.steps * rows
        seconds = rest.took / rest.timed if rest.timed else rest.seconds / rest.steps
        self._costs.learn(
            rows,
            rest.depth,
            context + tokens // 2,
            seconds,
            rest.host / rest.steps,
            starved=not rest.timed,
            steps=1 if rest.depth else max(1, rest.timed),
        )
        self._earned += rest.seconds
        rest.begin(Load(rows, context + tokens))  # there may be more of it to come

    def _look_out(self, rest: Rest, result: StepResult) -> None:
        """For what ends a rest: windows that bring much more or less than those it was decided by."""
        rows, tokens = len(result.work), sum(map(len, result.tokens))
        rest.tokens += tokens
        self._unexpected += tokens - rows * self._expected[rest.depth]
        self._steps_rested += 1
        if self._unexpected**2 > (UNEXPECTED * rest.depth / 2) ** 2 * rows * self._steps_rested:
            self._holds = self._rests = 0
        self._gather(_windows(result), rest.depth, fresh=False)

    def _settle_accounts(self, launched: Launched, result: StepResult) -> None:
        load, seconds = launched.load, result.seconds
        if launched.trial is None:
            self._earned += seconds
        elif self._speed:
            trial, verified = launched.trial, launched.verified or 0
            kinds = self._costs.beliefs(load.rows, (verified, trial.depth), load.context)
            usual, tried = kinds[verified].seconds, kinds[trial.depth].seconds
            took, longest = seconds, max(INTERRUPTED * usual, tried)
            if seconds > longest:  # that is not its fault, unless the host has had more to do for it
                took = min(seconds, DISTURBED * longest) if result.starved else usual
            saves = usual  # by a step that had to be made in any case
            if verified == trial.depth and not launched.follows:
                brings = load.rows * self._expected[verified]  # luck aside,
                if trial.looks:
                    brings = sum(map(len, result.tokens))  # unless it is luck that is looked for
                saves = brings / self._speed
            self._accounts_of(load.rows)[trial.account] -= took - saves

    def _gather(self, windows: Counter[tuple[int, int]], drafts: int, *, fresh: bool) -> None:
        if drafts != self._gathered:
            self._learn_windows()
            self._gathered = drafts
        self._windows[fresh].update(windows)

    def _learn_windows(self) -> None:
        for fresh, windows in self._windows.items():
            if windows:
                self._survival.learn(windows, fresh=fresh, asked=self._gathered)
                windows.clear()


def _windows(result: StepResult) -> Counter[tuple[int, int]]:
    """How many rows had so many drafts, if any, and as many that were accepted."""
    rows = zip(result.work, result.tokens, strict=True)
    return Counter([(work.window.drafts, len(tokens) - 1) for work, tokens in rows if work.window.drafts])


def _told(rate: float, known: bool) -> str:
    if math.isinf(rate):
        return "unknown"
    return f"{rate:.0f}" if known else f"at most {rate:.0f}"
