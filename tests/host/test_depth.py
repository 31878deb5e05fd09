"""How many drafts: the policies alone, told of steps that never ran."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from holdfast.adaptive import AdaptiveConfig, Band
from holdfast.ids import Row, Slot
from holdfast.params import SamplingParams
from holdfast.plan import RowStart, RowWork, StepPlan, StepResult, Window
from holdfast.scheduler import cost_depth, quiet
from holdfast.scheduler.cost_depth import AFTER, LOOKING, OFTEN, TIMED, CostDepth
from holdfast.scheduler.ema_depth import EmaDepth
from holdfast.scheduler.launched import LOOKED, MEASURE, WARM, Launched, Load, Rest, Trial
from holdfast.scheduler.step_costs import Belief, StepCosts, band
from holdfast.scheduler.survival import Survival

from .harness import Harness, make_limits, make_request
from .loop import Loop
from .restless import Restless

START = RowStart(Row(1), 1, (), Slot(1), Slot(0), 0, SamplingParams(), 0)


# --- ema ---


def ema(initial: int, **options: object) -> EmaDepth:
    return EmaDepth(AdaptiveConfig("ema", **options), initial)  # type: ignore[arg-type]


def test_ema_waits_out_the_warm_up_and_moves_at_intervals() -> None:
    loop = Loop(ema(3))
    loop.right = dict.fromkeys(loop.right, 7)
    made = loop.run(30)
    assert made[:11] == [3] * 11 and 7 in made[11:16], "ten batches with drafts, the first step had none"
    assert loop.depth.steps[3]["warm-up"] == 11 and loop.depth.reason == "ema"


@pytest.mark.parametrize(("right", "settles"), [(0, 0), (1, 3), (2, 3), (3, 7), (7, 7)])
def test_ema_settles_where_accepted_drafts_are(right: int, settles: int) -> None:
    loop = Loop(ema(3))
    loop.right = dict.fromkeys(loop.right, right)
    made = loop.run(200)
    assert max(set(made[100:]), key=made[100:].count) == settles


def test_ema_comes_back_from_nothing_by_probing() -> None:
    loop = Loop(ema(1))
    assert loop.run(120)[-50:].count(0) >= 48, "and a probe now and then"
    loop.right = dict.fromkeys(loop.right, 7)
    assert loop.run(400)[-1] == 7


def test_ema_stays_within_its_band() -> None:
    bands = (Band(1, (1, 3)), Band(4, (0, 1)))
    few, many = Loop(ema(3, bands=bands), rows=3), Loop(ema(3, bands=bands), rows=4)
    for loop in (few, many):
        loop.right = dict.fromkeys(loop.right, 7)
    assert few.run(60)[-1] == 3 and many.run(60)[-1] == 1


# --- survival and costs ---


def test_a_place_counts_only_if_it_was_reached() -> None:
    survival = Survival(3)
    for _ in range(200):
        survival.learn(Counter([(3, 1), (3, 1), (3, 3), (1, 1)]))
    first, second, third = survival.rates()
    assert first > 0.99 and abs(second - 1 / 3) < 0.1 and third > 0.9
    assert survival.expected()[:2] == [1.0, pytest.approx(1 + first, rel=0.01)]


def test_who_comes_new_is_like_all_there_were() -> None:
    """And not like the last one, for whom nothing was right. The first of many to end are those that are guessed
    well, so the last are not."""
    survival = Survival(3)
    for _ in range(200):
        survival.learn(Counter([(3, 3)] * 15 + [(3, 0)]))
    for _ in range(100):
        survival.learn(Counter([(3, 0)]))
    assert survival.rates()[0] < 0.1
    survival.admit(0.5)
    assert 0.3 < survival.rates()[0] < 0.7
    survival.admit(1.0)
    assert survival.rates()[0] > 0.85


def test_what_windows_of_a_depth_brought_is_held_against_what_was_expected() -> None:
    """Of two drafts both are accepted where each was, alone, every other time."""
    survival = Survival(2)
    for _ in range(400):
        survival.learn(Counter([(2, 2)] * 8 + [(2, 0)] * 8))
        survival.learn(Counter([(1, 1)] * 4 + [(1, 0)] * 12))
    assert survival.expected()[2] == pytest.approx(2.0, rel=0.05)
    assert survival.expected()[1] == pytest.approx(1.25, rel=0.05)


FRESH, LATER = Counter([(3, 3), (3, 1)] * 8), Counter([(3, 2), (3, 0)] * 8)
"""Windows that bring three tokens, and two."""


def told_by_fresh_windows(compared: int) -> float:
    """Tokens that are expected of three drafts, after trials of so many windows."""
    survival = Survival(3)
    survival.compare(3, compared, 3 * compared, fresh=True)
    survival.compare(3, compared, 2 * compared, fresh=False)
    for _ in range(100):
        survival.learn(FRESH, fresh=True)
    return survival.expected()[3]


def test_fresh_windows_tell_of_those_that_follow_by_how_they_differed_in_trials() -> None:
    """The more there were of these, the more."""
    told = [told_by_fresh_windows(compared) for compared in (0, 4, 40, 400, 4000)]
    assert told == sorted(told, reverse=True)
    assert (
        told[0] == pytest.approx(3.0, rel=0.03) and told[1] > 2.9 and told[-1] == pytest.approx(2.0, rel=0.05)
    )


def test_what_is_expected_of_drafts_does_not_change_with_the_windows_that_tell() -> None:
    survival = Survival(3)
    for _ in range(200):
        survival.compare(3, 16, 48, fresh=True)
        survival.compare(3, 16, 32, fresh=False)
    for fresh in (True, False, True):
        for step in range(100):
            survival.learn(FRESH if fresh else LATER, fresh=fresh)
            assert step < 3 or survival.expected()[3] == pytest.approx(2.0, rel=0.12)


def test_later_windows_are_never_believed_to_bring_more() -> None:
    survival = Survival(3)
    survival.compare(3, 400, 800, fresh=True)
    survival.compare(3, 400, 1200, fresh=False)
    for _ in range(100):
        survival.learn(LATER, fresh=True)
    assert survival.expected()[3] == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("accepted", [0, 3])
def test_where_drafts_are_always_or_never_accepted_windows_do_not_differ(accepted: int) -> None:
    """Whatever they did in other texts."""
    survival = Survival(3)
    survival.compare(3, 400, 1200, fresh=True)
    survival.compare(3, 400, 800, fresh=False)
    for _ in range(300):
        survival.learn(Counter([(3, accepted)] * 16), fresh=True)
    assert survival.expected()[3] == pytest.approx(1 + accepted, abs=0.02)


def test_places_that_were_never_tried_are_like_the_one_before() -> None:
    survival = Survival(7)
    for _ in range(100):
        survival.learn(Counter([(1, 1), (1, 0)]))
    assert survival.rates() == [pytest.approx(0.5, abs=0.02)] * 7


def test_a_change_is_believed_at_once_and_of_all_places() -> None:
    survival = Survival(7)
    for _ in range(100):
        survival.learn(Counter([(7, 0)] * 16))
    survival.learn(Counter([(1, 1)] * 16))
    assert min(survival.rates()) > 0.4
    for _ in range(100):
        survival.learn(Counter([(7, 7)]))
    while survival.rates()[0] > 0.6:
        survival.learn(Counter([(7, 0)]))
    survival.learn(Counter([(7, 2)]))
    assert max(survival.rates()[2:]) < 0.75, "of places that were not reached since, nothing old comes back"


def belief(costs: StepCosts, rows: int, depth: int) -> Belief:
    return costs.beliefs(rows, [depth], 0)[depth]


def test_an_unknown_cost_is_that_of_less_or_of_other_rows() -> None:
    costs = StepCosts()
    assert costs.seconds(4, 1, 0) == 0.0
    for depth, seconds in ((0, 1.0), (3, 2.0)):
        costs.learn(8, depth, 0, seconds)
        costs.learn(8, depth, 0, seconds)
    assert [costs.seconds(8, depth, 0) for depth in (0, 1, 3, 7)] == pytest.approx([1, 1, 2, 2], rel=1e-3)
    assert costs.seconds(64, 3, 0) == costs.seconds(4, 3, 0) == pytest.approx(2.0, rel=1e-3)
    for _ in range(2):
        costs.learn(64, 0, 0, 3.0)
    assert costs.seconds(64, 3, 0) == pytest.approx(6.0, rel=1e-3), "in proportion to what is known of both"
    assert belief(costs, 64, 3).foreseen and not belief(costs, 64, 7).foreseen
    assert belief(costs, 7, 3).known and not belief(costs, 8, 1).known and not belief(costs, 9, 3).known
    assert [band(rows) for rows in (1, 2, 5, 7, 13, 200, 256)] == [1, 2, 6, 8, 16, 256, 256]


def test_a_first_step_that_compiles_is_not_believed() -> None:
    costs = StepCosts()
    for seconds in (30.0, 0.01, 0.01):
        costs.learn(8, 1, 0, seconds)
    assert costs.seconds(8, 1, 0) < 0.011
    costs.learn(8, 1, 0, 30.0)
    assert costs.seconds(8, 1, 0) < 0.011, "nor one that something interrupts"


def test_a_first_step_that_looked_short_is_not_believed_for_long() -> None:
    """And none of it is put down to the context, which grows."""
    costs = StepCosts()
    for step, seconds in enumerate((0.010, 0.003, *[0.010] * 100)):
        costs.learn(8, 7, 1000 + 20 * step, seconds)
    assert costs.seconds(8, 7, 3000) == pytest.approx(0.010, rel=0.05) and costs.per_token == 0.0


def test_first_steps_are_slow() -> None:
    """Graphs are replayed for the first time: as an H200 had it, when all steps after these took 240 us."""
    costs = StepCosts()
    for seconds in (613e-6, 471e-6, 358e-6, 240e-6, 241e-6):
        costs.learn(1, 0, 100, seconds)
    assert costs.seconds(1, 0, 100) < 242e-6 and belief(costs, 1, 0).known and not belief(costs, 1, 0).sure


def test_now_and_then_a_step_is_slow() -> None:
    """As when the host does something else every few steps: that is part of what such steps take."""
    costs = StepCosts()
    for step in range(200):
        costs.learn(1, 0, 100, 290e-6 if step % 4 == 0 else 210e-6)
    assert costs.seconds(1, 0, 100) == pytest.approx(230e-6, rel=0.03)
    costs.learn(1, 0, 100, 0.1)
    assert costs.seconds(1, 0, 100) < 240e-6, "an interruption is not"


def test_a_slow_patch_is_believed_while_it_lasts_and_forgotten_after() -> None:
    costs, believed = StepCosts(), []
    for seconds in (*[230e-6] * 40, *[300e-6] * 80, *[230e-6] * 80):
        costs.learn(1, 0, 100, seconds)
        believed.append(costs.seconds(1, 0, 100))
    assert believed[119] == pytest.approx(300e-6, rel=0.03) and believed[-1] == pytest.approx(
        230e-6, rel=0.03
    )


def test_whoever_looks_again_goes_by_what_is_seen_now() -> None:
    """Sooner by what is shorter than it was: what is longer will be in use, and be known."""
    costs = {seconds: StepCosts() for seconds in (0.002, 0.004)}
    for now, them in costs.items():
        for seconds in (*[0.003] * 40, *[0.002] * 100):
            them.learn(8, 1 if seconds == 0.003 else 0, 0, seconds)
        for _ in range(4):
            them.learn(8, 1, 0, now)
    shorter, longer = (
        (0.003 - costs[0.002].seconds(8, 1, 0)) / 0.001,
        (costs[0.004].seconds(8, 1, 0) - 0.003) / 0.001,
    )
    assert 0.5 < shorter < 1 and 0.1 < longer < 0.5


@pytest.mark.parametrize("ragged", [True, False])
def test_where_no_graphs_are_launched_a_look_tells_the_time_as_well(
    ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafts that a step verifies were made for it, so it takes what every step with so many does."""
    policy = CostDepth(AdaptiveConfig(), 3, ragged=ragged)
    loop = Loop(policy, rows=1)
    loop.seconds = lambda tokens: 1 + 0.5 * tokens  # type: ignore[method-assign]
    loop.run(200)
    learned = list[int]()
    learn = policy._costs.learn
    monkeypatch.setattr(
        policy._costs, "learn", lambda *kind, **how: (learned.append(kind[1]), learn(*kind, **how))
    )
    before = dict(policy.steps[1])
    made = loop.run(300)
    looks = sum(policy.steps[1].values()) - sum(before.values())
    assert looks == made.count(1) > 3 and sum(made) == looks
    assert learned.count(1) >= looks - 1 if ragged else not learned.count(1)


def test_a_step_takes_as_long_as_the_slower_of_device_and_host() -> None:
    """What a depth took while the host was slow says nothing of the device; and how slow it is, the steps of another
    tell."""
    costs = StepCosts()

    def steps(depth: int, device: float, host: float, count: int = 36) -> None:
        for _ in range(count):
            costs.learn(8, depth, 0, max(device, host), host, starved=host > device)

    steps(3, 600e-6, 400e-6)
    steps(0, 200e-6, 300e-6)
    assert costs.seconds(8, 0, 0) == pytest.approx(300e-6) and costs.seconds(8, 3, 0) == pytest.approx(600e-6)
    steps(3, 600e-6, 800e-6)
    assert costs.seconds(8, 0, 0) == pytest.approx(600e-6, rel=0.1), "at twice the pace"
    assert costs.seconds(8, 3, 0) == pytest.approx(800e-6, rel=0.1)
    steps(3, 600e-6, 400e-6)
    assert costs.seconds(8, 0, 0) == pytest.approx(300e-6, rel=0.1), "though it was not seen again"
    assert costs.seconds(8, 3, 0) == pytest.approx(600e-6, rel=0.01)


def test_the_mean_of_many_steps_counts_for_them() -> None:
    costs = StepCosts()
    costs.learn(8, 0, 0, 50e-6, 100e-6, steps=32)
    assert costs.seconds(8, 0, 0) == pytest.approx(100e-6)
    costs.learn(8, 0, 0, 50e-6, 200e-6, steps=16)
    assert costs.seconds(8, 0, 0) == pytest.approx(150e-6, rel=0.01), "half of the last 32 took twice as long"


def test_a_depth_that_was_only_tried_while_the_host_was_slow_is_not_put_down_for_it() -> None:
    """With fewer drafts the host does not take longer than with more: that is all that is known of it."""
    costs = StepCosts()
    for _ in range(20):
        costs.learn(8, 7, 0, 900e-6, 400e-6)
    for _ in range(4):
        costs.learn(8, 3, 0, 1300e-6, 1300e-6, starved=True)
    for _ in range(20):
        costs.learn(8, 7, 0, 900e-6, 400e-6)
    assert belief(costs, 8, 3).known and costs.seconds(8, 3, 0) < 500e-6


def test_a_rest_ends_when_windows_bring_what_nobody_expected() -> None:
    """Longer and longer while all is as expected, and at once when it is not."""
    loop = Loop(CostDepth(AdaptiveConfig(), 3, ragged=False), rows=16)
    loop.right = dict.fromkeys(loop.right, 3)
    loop.seconds = lambda tokens: 1e-3 + 1e-6 * tokens  # type: ignore[method-assign]
    loop.run(300)
    while loop.depth._holds < 14:
        loop.run(1)
    loop.right = dict.fromkeys(loop.right, 0)
    loop.run(16)
    assert loop.depth._rests < 15


@pytest.mark.parametrize("right", [0, 7])
def test_what_steps_of_a_rest_take_is_learned_on_average(right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other would take the host as long as the device takes for some of them."""
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop, costs = Loop(policy, late=2), policy._costs
    loop.right = dict.fromkeys(loop.right, right)
    chance = random.Random(5)
    loop.seconds = lambda tokens: (1 + 2 * (tokens > 2)) * chance.uniform(0.9, 1.1)  # type: ignore[method-assign]
    loop.run(1000)
    depth = policy._settled
    assert (depth > 0) == (right > 0)
    calls, rested, single = [], list[int](), list[int]()
    learn, add, learn_result = costs.learn, Rest.add, policy._learn_result
    monkeypatch.setattr(costs, "learn", lambda *kind, **how: (calls.append(kind), learn(*kind, **how)))
    monkeypatch.setattr(Rest, "add", lambda rest, result: (rested.append(result.step), add(rest, result)))
    monkeypatch.setattr(
        policy, "_learn_result", lambda made, it: (single.append(it.step), learn_result(made, it))
    )
    lying = []
    for _ in range(400):
        loop.run(1)
        lying.append(len(policy._results))
    seen = sorted(rested + single)
    if right:
        assert seen == list(range(seen[0], seen[-1] + 1)) and len(seen) > 397
    else:
        assert len(seen) < 200, "nobody is awake most of the time"
    assert len(calls) < 160 and len(rested) > TIMED
    assert max(lying) == 1, "memory that is held for long makes work for whoever frees it"
    believed = belief(costs, 2, depth)
    assert believed.sure and believed.seconds == pytest.approx(3.0 if depth else 1.0, rel=0.03)


def test_what_is_left_of_a_rest_is_learned_where_it_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, _ = asleep(rows=3)
    rest, contexts = Rest(0, 2.0, Load(3, 1000)), list[int]()
    policy._resting = rest
    monkeypatch.setattr(policy._costs, "learn", lambda *kind, **_: contexts.append(kind[2]))
    for steps in (20, 2):
        for step in range(steps):
            rest.add(StepResult(step, seconds=1.0))
        policy._learn_rest()
    assert contexts == [1000 + 30, 1000 + 60 + 3]


def test_every_step_of_a_rest_tells_what_drafts_bring() -> None:
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3)),)), 3, ragged=False)
    loop = Loop(policy, rows=16, late=1)
    loop.right = dict.fromkeys(loop.right, 3)
    loop.run(200)
    while policy._holds < 10:
        loop.run(1)
    policy._learn_windows()
    loop.run(6)
    assert policy._holds and policy._windows[False] == {(3, 3): 16 * 6}


def test_a_step_of_a_rest_for_which_the_device_waits_does_not_tell_what_the_device_takes() -> None:
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy, late=1)
    took = 1.0
    loop.seconds = lambda tokens: took if tokens == 2 else 3.0  # type: ignore[method-assign]
    loop.run(1000)
    assert policy._settled == 0 and belief(policy._costs, 2, 0).seconds == pytest.approx(1.0)
    loop.starved, took = True, 1.3
    loop.run(400)
    assert belief(policy._costs, 2, 0).seconds == pytest.approx(1.0)
    loop.starved = False
    loop.run(3000)
    assert belief(policy._costs, 2, 0).seconds == pytest.approx(1.3, rel=0.03)


def test_an_interruption_in_a_rest_counts_for_no_more_than_elsewhere() -> None:
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy, late=1)
    loop.seconds = lambda tokens: 3.0 if tokens > 2 else 1.0 if loop.step % 20 else 50.0  # type: ignore[method-assign]
    loop.run(2000)
    assert policy._settled == 0 and belief(policy._costs, 2, 0).seconds < 1.07


@pytest.fixture
def as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was quiet, and however often a depth was seen."""
    monkeypatch.setattr(quiet, "QUIET", math.inf)
    monkeypatch.setattr(cost_depth, "MEASURED", math.inf)


def asleep(rows: int = 2) -> tuple[CostDepth, Loop]:
    """Without drafts, in the middle of a rest."""
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1, 3)),)), 3, ragged=False)
    loop = Loop(policy, rows=rows, late=2)
    loop.seconds = lambda tokens: 1.9 if tokens > rows else 1.0  # type: ignore[method-assign]
    loop.run(1000)
    while policy._sleeps != 50:
        loop.run(1)
    return policy, loop


def test_nobody_thinks_in_a_rest_without_drafts_and_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, loop = asleep()
    monkeypatch.setattr(policy, "_learn", lambda: pytest.fail("it was to rest"))
    counted, context, earned, slept = policy.steps[0]["best"], policy._load.context, policy._earned, loop.step
    assert not any(loop.run(49)) and policy._sleeps == 1 and not policy._flight
    assert policy.steps[0]["best"] == counted + 49, "but it is counted"
    monkeypatch.undo()
    resting, awake = policy._resting, policy._awake
    assert resting is not None
    loop.run(1)
    slept = loop.step - 1 - awake
    assert policy._awake == 0 and policy._load == (2, resting.load.context)
    assert policy._load.context >= context + 2 * slept
    assert policy._earned == pytest.approx(earned + slept + TIMED, abs=4)


@pytest.mark.parametrize("joins", [False, True])
def test_who_comes_or_goes_ends_a_rest(*, joins: bool) -> None:
    policy, loop = asleep()
    if joins:
        loop.windows[Row(3)], loop.right[Row(3)] = Window(), 0
    else:
        del loop.windows[Row(2)]
    loop.run(1)
    assert policy._sleeps == 0 and policy._load.rows == len(loop.windows)


@pytest.mark.usefixtures("as_often")
def test_a_rest_is_as_long_as_looks_take_to_be_paid() -> None:
    """An account that owes first pays that, at a quarter of its part; what measuring owes is another matter."""
    policy, _ = asleep()
    rates, accounts = policy._promises(policy._beliefs), policy._accounts_of(2)
    loses = policy._loses(Trial(policy._looked_at, True), rates)
    accounts[policy._looked_at] = -100.0
    for owed, missing in ((0.0, loses), (0.4, loses + 0.4), (0.9, 4 * 0.4)):
        accounts[LOOKED] = -owed
        assert policy._until_look(rates) == pytest.approx(missing / LOOKING, abs=2)


def test_nothing_is_tried_while_windows_of_the_depth_before_are_still_to_come() -> None:
    policy, _ = asleep()
    policy._sleeps = policy._awake = policy._holds = 0
    accounts = policy._accounts_of(2)
    for before, reason in ((3, "best"), (0, "probe")):
        accounts[LOOKED] = 100.0
        policy._settled, policy._learned = before, True
        policy._choose()
        assert (policy._settled, policy.reason) == (0, reason)


def test_none_is_explored_for_as_long_as_it_takes_to_know_it() -> None:
    loop = Loop(CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3)),)), 3, ragged=False))
    loop.right = dict.fromkeys(loop.right, 3)
    loop.seconds = lambda tokens: 1.0 if tokens == 2 else 3.0  # type: ignore[method-assign]
    lulls = [len(list(steps)) for drafts, steps in itertools.groupby(loop.run(40)) if not drafts]
    assert lulls[0] == MEASURE + WARM


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("ragged", [False, True])
def test_steps_without_drafts_are_timed_when_caches_are_theirs_again(late: int, *, ragged: bool) -> None:
    """While drafts are made there are only a few at a time, and the first two of them take longer."""
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3)),)), 3, ragged=ragged)
    loop, without = Loop(policy, late=late), 0
    loop.right = dict.fromkeys(loop.right, 3)

    def seconds(tokens: int) -> float:
        nonlocal without
        without = without + 1 if tokens == 2 else 0
        return 3.8 if not without else 1.3 if without < 3 else 1.0

    loop.seconds = seconds  # type: ignore[method-assign]
    made = loop.run(3000)[1000:]
    assert made.count(0) > 12 and made.count(3) > 1700
    assert policy._costs.seconds(2, 0, 200) == pytest.approx(1.0), "none is 5% slower, not a third"


@pytest.mark.parametrize("seed", range(3))
def test_times_that_differ_much_are_no_news(seed: int) -> None:
    """Nor is the context to blame, which grows meanwhile. A quarter of them take less than is believed."""
    costs, chance = StepCosts(), random.Random(seed)
    quarter = 1.5e-3 * math.exp(-0.674 * 0.25)
    for step in range(400):
        costs.learn(64, 1, 64 * (60 + step), 1.5e-3 * chance.lognormvariate(0, 0.25))
        if step > 50:
            assert 0.75 < costs.seconds(64, 1, 64 * (60 + step)) / quarter < 1.33
    assert costs.per_token < 1e-8


def test_context_is_part_of_the_cost() -> None:
    """Learned at one depth while contexts grow, and known of the others."""
    costs = StepCosts()
    for context in (10_000, 10_000):
        costs.learn(16, 3, context, 0.002 + 1e-8 * context)
    for context in range(10_000, 200_000, 1000):
        costs.learn(16, 0, context, 0.001 + 1e-8 * context)
    assert costs.per_token == pytest.approx(1e-8, rel=0.05)
    costs.learn(16, 3, 200_000, 0.004)
    assert costs.seconds(16, 3, 200_000) == pytest.approx(0.004, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_what_context_costs_shows_in_answers_of_a_few_hundred_tokens(seed: int) -> None:
    """As an H200 had it: sixteen requests, 203 us at the beginning of their answers and 217 at the end, give or take
    eight; every fourth step is learned from."""
    costs, chance = StepCosts(), random.Random(seed)
    for _ in range(6):
        for step in range(0, 384, 4):
            costs.learn(16, 0, 16 * (40 + step), (203 + 14 * step / 384) * 1e-6 + chance.gauss(0, 8e-6))
    assert 0.4 < costs.per_token / (14e-6 / (16 * 384)) < 1.2
    first, last = (costs.seconds(16, 0, 16 * at) for at in (40, 424))
    assert 205e-6 < first + 4e-6 < last < 222e-6


def test_long_contexts_make_drafts_worth_more() -> None:
    """Two tokens take more than twice as long as one, but of a context of any length they are read once."""
    made = {}
    for context in (0, 400_000):
        policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1)),)), 1, ragged=False)
        loop = Loop(policy)
        loop.right = dict.fromkeys(loop.right, 1)

        def seconds(tokens: int, context: int = context) -> float:
            return 1e-3 * tokens**1.2 + 1e-8 * context

        loop.seconds = seconds  # type: ignore[method-assign]
        made[context] = sum(loop.run(200)[100:])
    assert made[0] < 10 and made[400_000] > 90


# --- cost ---


def test_all_candidates_are_compared() -> None:
    """A staircase: three drafts cost more than they bring, seven bring more than they cost."""
    loop = Loop(CostDepth(AdaptiveConfig(), 1, ragged=False), rows=1)
    loop.right = dict.fromkeys(loop.right, 7)
    loop.seconds = lambda tokens: {1: 1.0, 2: 3.0, 4: 5.0, 8: 5.5}[tokens]  # type: ignore[method-assign]
    assert loop.run(200)[-100:].count(7) > 80, "but for trials of the others"
    while loop.depth.reason != "best":
        loop.run(1)
    assert loop.depth.why().startswith("7 drafts (best); tokens/s of 1 rows with so many drafts: 0: 1, 1: 1")


def test_what_costs_less_to_find_out_comes_first() -> None:
    """With one draft each a step takes 1.6 times as long. If seven took no longer they would be worth it: but three
    take longer already, which bounds what seven take."""
    loop = Loop(CostDepth(AdaptiveConfig(), 0, ragged=False), rows=100)
    accepted = [0] * 61 + [1] * 24 + [2] * 9 + [3] * 4 + [4, 7]
    loop.right = dict(zip(loop.right, accepted, strict=True))
    loop.seconds = lambda tokens: {1: 1.0, 2: 1.6, 4: 2.8, 8: 5.2}[tokens // 100]  # type: ignore[method-assign]
    made = loop.run(100)
    assert 3 in made and 7 not in made and made[50:].count(0) > 45


@pytest.mark.parametrize(("reached", "begins"), [(1000.0, False), (20.0, True)])
def test_drafts_are_not_begun_for_what_may_be_luck_unless_the_text_has_changed(
    reached: float, *, begins: bool
) -> None:
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3)),)), 3, ragged=False)
    loop = Loop(policy)
    loop.seconds = lambda tokens: 1 + 0.5 * (tokens > 2)  # type: ignore[method-assign]
    loop.run(4000)
    assert policy._settled == 0 and policy._beliefs[3].sure
    policy._survival._places[0].reached = reached
    assert policy._best({0: 1000.0, 3: 1020.0}) == (3 if begins else 0, "best")
    assert policy._best({0: 1000.0, 3: 1040.0}) == (3, "best")
    policy._settled = 3
    assert policy._best({0: 1020.0, 3: 1000.0}) == (0, "best"), "to cease takes less"


def test_what_cannot_be_the_best_is_never_tried() -> None:
    loop = Loop(CostDepth(AdaptiveConfig(), 1, ragged=False), rows=1)
    loop.seconds = float  # type: ignore[method-assign]
    made = loop.run(100)
    assert 7 not in made and made[-30:].count(0) >= 28
    assert {"explore", "best"} <= set(loop.depth.steps[0])


def test_without_drafts_probes_are_few_and_none_where_no_draft_could_pay() -> None:
    cheap = Loop(CostDepth(AdaptiveConfig(), 1, ragged=False))
    dear = Loop(CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1)),)), 1, ragged=False))
    cheap.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
    dear.seconds = lambda tokens: float(tokens**2)  # type: ignore[method-assign]
    assert 3 <= sum(made > 0 for made in cheap.run(300)[100:]) <= 25
    assert not any(dear.run(300)[100:])


def test_drafts_that_become_worth_it_are_made_within_fifty_steps() -> None:
    """Or a few more, if there was a look just before."""
    took = []
    for change in range(300, 342, 3):  # looks are 42 steps apart
        loop = Loop(CostDepth(AdaptiveConfig(), 1, ragged=False))
        loop.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
        loop.run(change)
        loop.right = dict.fromkeys(loop.right, 7)
        took.append(loop.run(100).index(7))
    assert sorted(took)[10] < 50 and max(took) < 60, took


@pytest.mark.parametrize("late", [0, 1])
def test_what_a_look_costs_is_known_before_there_is_another(late: int) -> None:
    """Drafts are verified a step after they were made, and steps may be told of late: until then the account still
    seems to be full."""
    loop = Loop(CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1)),)), 1, ragged=False), late=late)
    loop.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
    made = loop.run(600)[100:]
    lengths = [(drafts, len(list(steps))) for drafts, steps in itertools.groupby(made)]
    assert [length for drafts, length in lengths if drafts].count(1) > 5, "looks"
    assert {length for drafts, length in lengths if drafts} <= {1, 4}, "or it measures what they take"
    assert min(length for drafts, length in lengths[1:-1] if not drafts) > 2


@pytest.mark.usefixtures("as_often")
@pytest.mark.parametrize("late", [0, 1])
def test_looks_are_paid_for_with_all_that_they_make_steps_take_longer(late: int) -> None:
    """The step that makes the drafts, because the drafter has to catch up; and one after they were verified, because
    the device waits for the host."""
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3)),)), 3, ragged=False)
    loop, since, took = Loop(policy, late=late), 9, list[float]()

    def seconds(tokens: int) -> float:
        nonlocal since
        verifies, since = tokens > 2, 0 if tokens > 2 else since + 1
        usual = 3.0 if verifies else 1.0
        took.append(usual + 1.2 * (not verifies and policy.depth > 0) + 0.9 * (since == 2))
        return took[-1]

    loop.seconds = seconds  # type: ignore[method-assign]
    loop.run(100)
    took.clear()
    made = loop.run(4000)
    assert sum(made) > 3 * 4, "it looks"
    assert 0.004 < 1 - len(made) / sum(took) < 0.015, "of two rows, whose drafts are never accepted"
    makes = Launched(policy._load, 0, False, Trial(3, True))
    assert charged(policy, makes, 2.5) == pytest.approx(1.5, rel=0.05), (
        "not an interruption: drafts take as long"
    )


def test_a_trial_is_not_charged_for_drafts_that_were_made_before_it() -> None:
    """They bring nothing any more, but it is not the trial that lost them; it pays if such steps take longer."""
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1, 3)),)), 3, ragged=False)
    loop = Loop(policy)
    loop.right = dict.fromkeys(loop.right, 3)
    loop.seconds = lambda tokens: 1 + 0.1 * tokens  # type: ignore[method-assign]
    loop.run(200)
    assert policy._settled == 3
    for looks, follows in itertools.product((False, True), repeat=2):
        launched = Launched(policy._load, 3, False, Trial(1, looks), follows)
        assert charged(policy, launched, 1.8) == pytest.approx(0, abs=1e-6)
        assert charged(policy, launched, 2.3) == pytest.approx(0.5, abs=1e-6)
        assert charged(policy, launched, 9.0) == pytest.approx(0, abs=1e-6), "that is an interruption"
        assert charged(policy, launched, 9.0, starved=True) == pytest.approx(7.2, abs=1e-6), "that is not"
        assert charged(policy, launched, 90.0, starved=True) < 20


def charged(policy: CostDepth, launched: Launched, seconds: float, *, starved: bool = False) -> float:
    """To the trial's account, for a step of two rows that brings a token of each."""
    assert launched.trial is not None
    accounts, account = policy._accounts_of(2), launched.trial.account
    work = tuple(
        RowWork(Row(row), 1, 1 + (launched.verified or 0), Window(launched.verified or 0)) for row in (1, 2)
    )
    before = accounts[account]
    policy._settle_accounts(
        launched, StepResult(9, work, tokens=[(0,), (0,)], seconds=seconds, starved=starved)
    )
    return before - accounts[account]


def test_a_look_that_gains_is_followed_by_another_as_soon_as_that_is_known() -> None:
    """Not only when the steps after it are, which it may have made longer."""
    loop = Loop(CostDepth(AdaptiveConfig(), 1, ragged=False))
    loop.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
    loop.run(300)
    loop.right = dict.fromkeys(loop.right, 7)
    first, second, *_ = (step for step, drafts in enumerate(loop.run(100)) if drafts)
    assert second - first == 3


def test_a_look_that_does_not_gain_is_thought_over_when_the_host_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = CostDepth(AdaptiveConfig(), 1, ragged=False)
    loop = Loop(policy, late=1)
    loop.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
    loop.run(300)
    settle, decided = policy._settle, list[int]()
    monkeypatch.setattr(policy, "_settle", lambda: (decided.append(loop.step), settle())[1])
    looks = [300 + step for step, drafts in enumerate(loop.run(200), 1) if drafts]
    assert len(looks) > 3
    for look in looks[:-1]:
        known = look + 2  # it is verified in the next step, and told of in the one after
        assert min(step for step in decided if step >= look) >= known + AFTER


def test_looks_that_led_to_drafts_owe_nothing() -> None:
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy)
    loop.right = dict.fromkeys(loop.right, 3)
    loop.run(100)
    accounts = policy._accounts_of(2)
    assert policy._settled > 0
    accounts[LOOKED] = -5.0
    policy._pay(policy._promises(policy._beliefs))
    assert accounts[LOOKED] == 0.0


@pytest.mark.usefixtures("as_often")
def test_what_trials_owe_is_paid_back_slowly_where_no_drafts_are_made() -> None:
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1, 3)),)), 3, ragged=False)
    loop = Loop(policy)
    loop.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
    loop.run(300)
    accounts = policy._accounts_of(2)
    assert policy._settled == 0 and policy._looked_at

    def paid(owed: float) -> float:
        accounts[LOOKED], policy._earned = -owed, 100.0
        policy._pay(policy._promises(policy._beliefs))
        return accounts[LOOKED] + owed

    assert paid(0.0) == paid(0.4) == pytest.approx(0.8)
    assert paid(0.6) == pytest.approx(0.2)
    [other] = {1, 3} - {policy._looked_at}
    assert policy._beliefs[other].steps < OFTEN, "where drafts are made it would get twice its part"
    assert policy._worth_measuring(other, policy._promises(policy._beliefs)) < 0.6


@pytest.mark.usefixtures("as_often")
@pytest.mark.parametrize("late", [0, 1])
def test_windows_are_compared_that_are_made_whatever_the_first_brings(
    late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a trial of four steps; a look is followed by others only if it gains."""
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1)),)), 1, ragged=False)
    loop = Loop(policy, late=late)
    loop.seconds = lambda tokens: 1 + 0.3 * (tokens > 2)  # type: ignore[method-assign]
    loop.run(100)
    told = list[tuple[int, int, int, bool]]()
    monkeypatch.setattr(policy._survival, "compare", lambda *windows, fresh: told.append((*windows, fresh)))
    made = loop.run(9000)
    trials = [len(list(steps)) for drafts, steps in itertools.groupby(made) if drafts]
    assert trials.count(1) > 10 and trials.count(4) > 2
    assert told == [(1, 2, 2, fresh) for fresh in (True, False, False, False)] * trials.count(4)


@pytest.mark.usefixtures("as_often")
def test_a_depth_that_promises_much_less_is_measured_less_often() -> None:
    """Without drafts a step takes half as long as with seven, and brings an eighth; with three it brings half."""
    loop = Loop(CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3, 7)),)), 7, ragged=False), rows=1, late=1)
    loop.right = dict.fromkeys(loop.right, 7)
    loop.seconds = lambda tokens: {1: 0.5, 4: 0.6, 8: 1.0}[tokens]  # type: ignore[method-assign]
    made = Counter(loop.run(48_000)[1000:])
    lost = {depth: made[depth] * (seconds - 0.125 * (1 + depth)) for depth, seconds in ((0, 0.5), (3, 0.6))}
    assert min(made[0], made[3]) > 3 and lost[0] < 0.3 * lost[3]


def test_a_depth_that_was_seen_in_a_slow_moment_only_is_soon_seen_again() -> None:
    """Three drafts are the best, but took half as long again in the first steps that had them."""
    loop = Loop(CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3, 7)),)), 3, ragged=False), rows=1, late=1)
    loop.right = dict.fromkeys(loop.right, 4)
    slow = itertools.chain(itertools.repeat(1.6, 8), itertools.repeat(1.0))
    loop.seconds = lambda tokens: {1: 0.5, 4: 1.0, 8: 1.4}[tokens] * (next(slow) if tokens == 4 else 1)  # type: ignore[method-assign]
    made = loop.run(500)
    assert made[30:60].count(7) > 20 and made[-80:].count(3) > 70


def test_a_look_that_is_never_answered_is_not_waited_for() -> None:
    """As when the last request ends with it, and the steps that come then are another's."""
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy, rows=1)
    loop.seconds = lambda tokens: 1 + 0.5 * tokens  # type: ignore[method-assign]
    made = loop.run(200)
    while made[-1] == 0:
        made = loop.run(1)
    loop.windows, loop.step = {Row(1): Window()}, loop.step + 100
    assert sum(loop.run(300)) > 3


@pytest.mark.parametrize("right", [0, 3])
def test_it_is_decided_while_the_device_computes(right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy, late=1)
    loop.right = dict.fromkeys(loop.right, right)
    loop.seconds = lambda tokens: 1 + 0.05 * tokens  # type: ignore[method-assign]
    loop.run(200)
    choose, decide = policy._choose, policy.decide
    chosen, asked, looks = list[bool](), False, 0

    def note() -> None:
        nonlocal looks
        chosen.append(asked)
        looks += policy._tries
        choose()

    def ask() -> int:
        nonlocal asked
        asked = True
        depth = decide()
        asked = False
        return depth

    monkeypatch.setattr(policy, "_choose", note)
    monkeypatch.setattr(policy, "decide", ask)
    made = loop.run(300)
    assert len(chosen) > 60 and looks > 5 and 3 < sum(n != right for n in made) < 100
    assert not any(chosen)


def test_in_a_ragged_step_drafts_go_where_they_are_accepted() -> None:
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3, 7)),)), 3, ragged=True)
    loop = Loop(policy, rows=4)
    loop.right = {Row(1): 7, Row(2): 0, Row(3): 0, Row(4): 0}
    loop.seconds = lambda tokens: 1 + 0.02 * tokens  # type: ignore[method-assign]
    loop.run(60)
    shares = [policy.share(row) for row in loop.windows]
    assert shares[0] == 7 and max(shares[1:]) <= 3, "and as many as three for each, all together"
    assert policy.share(Row(9)) == policy.depth, "of a row that came just now nothing is known"


def test_in_a_ragged_step_a_probe_asks_a_few_and_others_the_next_time() -> None:
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 1)),)), 1, ragged=True)
    loop = Loop(policy, rows=20)
    loop.seconds = lambda tokens: 1 + 0.1 * tokens  # type: ignore[method-assign]
    asked = []
    for _ in range(200):
        loop.run(1)
        if policy.reason == "probe":
            asked.append({row for row in loop.windows if policy.share(row)})
    assert len(asked) > 3 and {len(rows) for rows in asked} == {8}
    assert set().union(*asked) == set(loop.windows)


def test_prompts_beside_it_do_not_teach_a_step_s_cost() -> None:
    policy = CostDepth(AdaptiveConfig(), 1, ragged=False)
    for step in range(1, 20):
        policy.decide()
        work = (RowWork(Row(1), 1, 1, Window()), RowWork(Row(2), 1, 64, Window(bonus=False)))
        policy.planned(StepPlan(step, work=work, positions=(9, 0)))
        policy.think()
        policy.collected(StepResult(step, work, tokens=[(5,), ()], seconds=9.0))
    assert not policy._costs._bands


def prompts(policy: CostDepth, steps: range, starts: int) -> None:
    for step in steps:
        policy.decide()
        work = (RowWork(Row(1), step, 40, Window()),)
        policy.planned(StepPlan(step, work=work, starts=(START,) * starts, positions=(0,)))
        policy.think()
        policy.collected(StepResult(step, work, tokens=[(5,)], seconds=9.0))


def test_prompts_teach_nothing_of_drafts() -> None:
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy)
    loop.right = dict.fromkeys(loop.right, 3)
    loop.run(60)
    policy._learn()  # of the last ones, too
    policy._learn_windows()
    before = policy._survival.expected()
    prompts(policy, range(1000, 1500), starts=0)
    policy._learn_windows()
    assert policy._survival.expected() == pytest.approx(before, rel=0.01)


def test_a_request_that_starts_is_like_all_there_were() -> None:
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy, rows=16)
    loop.right = dict.fromkeys(loop.right, 7)
    loop.run(200)
    loop.windows = {Row(1): Window()}
    loop.right = {Row(1): 0}
    loop.run(60)
    assert policy._survival.rates()[0] < 0.2
    prompts(policy, range(1000, 1001), starts=1)
    assert policy._survival.rates()[0] > 0.7


def test_what_is_learned_when_a_request_starts_is_of_those_before_it() -> None:
    """Their last step is known by then, but was not thought over."""
    policy = CostDepth(AdaptiveConfig(), 3, ragged=False)
    loop = Loop(policy, rows=16, late=1)
    loop.right = dict.fromkeys(loop.right, 7)
    loop.run(200)
    loop.windows, loop.right = {Row(1): Window(3)}, {Row(1): 0}
    loop.run(60)
    policy.collected(loop.untold.pop())
    work = (RowWork(Row(1), 2, 40, Window()),)
    policy.planned(StepPlan(1000, work=work, starts=(START,), positions=(0,)))
    policy.think()
    policy._learn_windows()  # if there are any left
    assert policy._survival.rates()[0] > 0.7


# --- in the scheduler ---


@pytest.mark.parametrize("in_flight", [0, 1])
@pytest.mark.parametrize("recurrent", [True, False])
def test_a_depth_that_changes_every_step_changes_no_answer(in_flight: int, recurrent: bool) -> None:
    """The fake objects to a draft that is verified but was never made, and to KV without a page."""
    limits = make_limits(
        fold_every=4, max_window=4, max_model_len=40, num_slots=6 if recurrent else 0, num_pages=20
    )
    harness = Harness(limits, depth=in_flight, prefix_reuse=True, drafts=Restless((0, 1, 3), seed=in_flight))
    for number in range(12):
        harness.submit(make_request(str(number), (number, 5, number % 3), max_tokens=30))
    harness.drain()
    assert len(harness.ended) == 12
    windows = {work.window.drafts for plan in harness.plans for work in plan.work}
    assert windows == {0, 1, 2, 3} and {plan.propose for plan in harness.plans} == {0, 1, 3}
    assert harness.scheduler.speculation_stats().accepted > 10


def test_no_row_verifies_more_than_was_made_for_it() -> None:
    harness = Harness(
        make_limits(fold_every=4, max_window=4, max_model_len=40), drafts=Restless((0, 3), shares=False)
    )
    harness.submit(make_request("a", (1, 2), max_tokens=30))
    harness.drain()
    made = [plan.propose for plan in harness.plans]
    for before, plan in zip(made, harness.plans[1:], strict=False):
        assert all(work.window.drafts <= before for work in plan.work)


def test_stats_tell_the_depth_and_why() -> None:
    harness = Harness(make_limits(fold_every=4, max_window=4))
    harness.submit(make_request("a", (1, 2), max_tokens=9))
    harness.drain()
    stats = harness.scheduler.speculation_stats()
    assert (stats.depth, stats.why) == (3, "3 drafts, as configured")
    assert stats.steps == {3: {"fixed": len(harness.plans)}}
