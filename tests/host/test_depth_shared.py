"""The cost policy where device and host are one: steps cost by their tokens, take long, and no two take the same."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

from holdfast.adaptive import AdaptiveConfig, Band
from holdfast.ids import Row
from holdfast.plan import RowWork, StepPlan, Window
from holdfast.scheduler.cost_depth import LONGEST, CostDepth
from holdfast.scheduler.depth import Depth
from holdfast.scheduler.launched import MEASURE, WARM, Launched, Load, Trial
from holdfast.scheduler.runs import Runs
from holdfast.scheduler.step_costs import PACE, StepCosts
from holdfast.scheduler.survival import SOONER, TOKENS, Survival

from .loop import Loop
from .replay import DEPTHS, SharedClock, run


def policy_of(*depths: int, ragged: bool = True) -> CostDepth:
    return CostDepth(AdaptiveConfig(bands=(Band(1, depths),)), depths[-1], ragged=ragged)


# --- the pace ---


def seen(costs: StepCosts, kinds: dict[int, float], steps: int = 64) -> None:
    for depth, seconds in kinds.items():
        for _ in range(steps):
            costs.learn(8, depth, 100, seconds)


@pytest.mark.parametrize("shared", [True, False])
def test_a_machine_that_is_slow_is_slow_for_all_kinds(*, shared: bool) -> None:
    costs = StepCosts(shared=shared)
    seen(costs, {3: 0.030, 5: 0.040}, steps=300)
    seen(costs, {3: 1.3 * 0.030}, steps=300)
    now = 1.3 if shared else 1.0
    assert costs.seconds(8, 3, 100) == pytest.approx(0.039, rel=0.01)
    assert costs.seconds(8, 5, 100) == pytest.approx(now * 0.040, rel=0.05)


def test_a_kind_that_was_seen_while_it_was_slow_is_not_put_down_for_it() -> None:
    costs = StepCosts(shared=True)
    seen(costs, {7: 0.045})
    seen(costs, {7: 1.3 * 0.045}, steps=200)
    seen(costs, {5: 1.3 * 0.040}, steps=12)
    seen(costs, {7: 0.045}, steps=300)
    assert costs.seconds(8, 5, 100) / costs.seconds(8, 7, 100) == pytest.approx(40 / 45, rel=0.04)


def many_times_as_slow(times: float) -> list[float]:
    """What is believed then of steps with 0, 1, 3, 5 and 7 drafts: three were seen, and five, for the first time."""
    costs = StepCosts(shared=True)
    seen(costs, {0: 0.010, 1: 0.020, 3: 0.030, 7: 0.050}, steps=300)
    seen(costs, {3: times * 0.030}, steps=1000)
    seen(costs, {5: times * 0.040}, steps=7)
    return [costs.seconds(8, depth, 100) for depth in (0, 1, 3, 5, 7)]


@pytest.mark.parametrize("times", [0.3, 4.0])
def test_a_machine_that_is_several_times_as_fast_or_slow_turns_nothing_round(times: float) -> None:
    believed = many_times_as_slow(times)
    assert believed == sorted(believed)


@pytest.mark.parametrize("times", [0.02, 0.3, 4.0, 50.0])
def test_what_is_seen_is_believed_however_fast_or_slow_it_is(times: float) -> None:
    """And whatever was not seen takes some time."""
    believed = many_times_as_slow(times)
    assert believed[2:4] == [pytest.approx(times * seconds, rel=0.03) for seconds in (0.030, 0.040)]
    assert min(believed) > 0


def test_steps_that_took_no_time_are_no_harm() -> None:
    costs = StepCosts(shared=True)
    seen(costs, {0: 0.0, 3: 0.0}, steps=40)
    assert costs.seconds(8, 3, 100) == 0.0


def test_what_is_hardly_known_says_nothing_of_the_pace() -> None:
    """The first steps of a kind are long, perhaps because something is prepared."""
    costs = StepCosts(shared=True)
    seen(costs, {7: 0.045})
    costs.learn(8, 5, 100, 0.040)
    seen(costs, {5: 0.055}, steps=PACE - 2)
    assert costs.seconds(8, 7, 100) == pytest.approx(0.045)


def test_a_kind_that_is_seen_first_while_it_is_slow_takes_what_it_took() -> None:
    costs = StepCosts(shared=True)
    seen(costs, {7: 0.045}, steps=300)
    seen(costs, {7: 1.3 * 0.045}, steps=300)
    seen(costs, {5: 1.3 * 0.040}, steps=3)
    assert costs.seconds(8, 5, 100) == pytest.approx(1.3 * 0.040)


def test_long_steps_count_as_much_as_short_ones() -> None:
    """Where they differ by chance, what is shorter is no news."""
    costs = StepCosts(shared=True)
    seen(costs, {5: 0.040}, steps=6)
    for seconds in (0.044, 0.036) * 6:
        costs.learn(8, 5, 100, seconds)
    assert costs.seconds(8, 5, 100) == pytest.approx(0.040, rel=0.01)


def test_what_context_costs_is_seen_while_it_is_slow_as_well() -> None:
    costs = StepCosts(shared=True)
    seen(costs, {5: 0.040}, steps=300)
    seen(costs, {5: 1.5 * 0.040}, steps=900)
    before = costs.per_token
    for step in range(2000):
        context = 100 + 40 * (step % 50)
        costs.learn(8, 5, context, 0.060 + 1e-6 * context)
    assert before < 1e-7 and costs.per_token == pytest.approx(1e-6, rel=0.3)


def test_it_is_shared_where_steps_cost_by_their_tokens() -> None:
    for ragged in (True, False):
        policy = policy_of(0, 3, ragged=ragged)
        seen(policy._costs, {0: 0.010, 3: 0.030}, steps=300)
        seen(policy._costs, {3: 0.040}, steps=300)
        assert (policy._costs.seconds(8, 0, 100) > 0.011) == ragged


def test_short_steps_feel_less_of_it() -> None:
    """What is the same at any pace is more of them."""
    costs = StepCosts(shared=True)
    seen(costs, {0: 0.010, 1: 0.020, 3: 0.030, 7: 0.050}, steps=300)
    seen(costs, {3: 1.3 * 0.030}, steps=300)
    slower = {depth: costs.seconds(8, depth, 100) / was for depth, was in ((0, 0.01), (1, 0.02), (7, 0.05))}
    assert 1.1 < slower[0] < 1.2 < slower[1] < 1.26 < slower[7] < 1.33


@pytest.mark.parametrize("seed", range(5))
def test_the_last_few_steps_of_a_kind_are_chance(seed: int) -> None:
    costs, chance = StepCosts(shared=True), random.Random(seed)
    for round_ in range(40):
        for depth, seconds in ((3, 0.030), (5, 0.040)):
            for _ in range(PACE if depth == 3 else 6):
                costs.learn(8, depth, 100, seconds * chance.lognormvariate(0, 0.12))
        if round_ > 20:
            ratio = costs.seconds(8, 5, 100) / costs.seconds(8, 3, 100)
            assert ratio == pytest.approx(4 / 3, rel=0.06), round_


# --- the end of an answer ---


class Ends(Loop):
    """A row whose windows are cut short every few steps, though as many drafts as ever were made for them."""

    def run(self, steps: int) -> list[int]:
        made = []
        for _ in range(steps):
            if self.step % 5 == 0 and self.windows[Row(1)].drafts > 1:
                self.windows = {Row(1): Window(1)}
            made += super().run(1)
        return made


@pytest.mark.parametrize("ragged", [True, False])
def test_a_window_that_an_answer_s_end_cut_short_is_not_one_of_a_smaller_depth(*, ragged: bool) -> None:
    """It begins where a longer one failed, and all the drafts were made."""
    policy = policy_of(0, 1, 7, ragged=ragged)
    loop = Ends(policy, rows=1)
    loop.right = {Row(1): 7}
    loop.seconds = lambda tokens: 0.010 + 0.001 * policy._asked  # type: ignore[method-assign]
    loop.run(600)
    assert policy._settled == 7
    cells, brought = policy._costs._bands[1], policy._survival._brought
    assert cells[1].steps < 40 and cells[7].steps > 200
    assert brought[1].tokens < 80, "those of trials"
    whole = 0.8 * 8 + 0.2 * 2
    assert policy._survival.expected()[7] == pytest.approx(whole, rel=0.08)


def planned(policy: CostDepth, step: int, drafts: int, propose: int) -> int | None:
    """What a step of one row with so many drafts is learned from as."""
    work = (RowWork(Row(1), 1, 1 + drafts, Window(drafts)),)
    policy.planned(StepPlan(step, work=work, positions=(100,), propose=propose))
    policy._learn()
    launched = policy._flight[step]
    assert isinstance(launched, Launched)
    return launched.verified


def test_more_drafts_than_were_asked_for_are_of_an_earlier_step() -> None:
    """Of a row that sat one out. And none at all, where some were made, are of one that cannot have any."""
    policy = policy_of(0, 3, 7)
    asked = [(0, 7), (7, 3), (3, 7), (5, 7), (0, 3), (7, 0), (0, 0)]
    kinds = [planned(policy, step, drafts, propose) for step, (drafts, propose) in enumerate(asked, 1)]
    assert kinds == [0, 7, 3, 7, None, None, 0]


def test_windows_that_were_cut_short_are_not_compared() -> None:
    policy = policy_of(0, 7, ragged=False)
    compared = []
    for step, drafts in enumerate((0, 7, 7, 2, 7), 1):
        policy.depth, policy.reason, policy._tried = 7, "probe", Trial(7, False)
        planned(policy, step, drafts, 7)
        launched = policy._flight[step]
        compared.append(isinstance(launched, Launched) and launched.compared)
    assert compared == [False, True, True, False, False]


def test_it_tells_what_so_many_drafts_bring_there() -> None:
    survival = Survival(7)
    for _ in range(600):
        survival.learn(Counter({(7, 7): 3, (1, 1): 1}), asked=7)
    assert survival.expected()[7] == pytest.approx((3 * 8 + 2) / 4, rel=0.05)
    assert survival._brought.keys() == {7}


# --- runs ---


def test_a_run_lasts_until_a_draft_is_wrong() -> None:
    runs = Runs()
    told = [runs.ended(RowWork(Row(1), 1, 6, Window(5)), tokens, 5) for tokens in (6, 6, 3, 1, 6)]
    assert told == [0, 0, 15, 1, 0]
    other = RowWork(Row(2), 1, 6, Window(5))
    assert runs.ended(other, 2, 5) == 2, "rows have their own"


@pytest.mark.parametrize(("generation", "asked"), [(2, 5), (1, 7)])
def test_another_request_or_depth_begins_another_run(generation: int, asked: int) -> None:
    runs = Runs()
    runs.ended(RowWork(Row(1), 1, 6, Window(5)), 6, 5)
    assert runs.ended(RowWork(Row(1), generation, 1 + asked, Window(asked)), 2, asked) == 2


def test_an_answer_s_end_ends_a_run() -> None:
    runs = Runs()
    runs.ended(RowWork(Row(1), 1, 6, Window(5)), 6, 5)
    assert runs.ended(RowWork(Row(1), 1, 3, Window(2)), 3, 5) == 9


def test_runs_tell_what_shorter_windows_would_bring() -> None:
    """Half of the text is always guessed, and half never: windows of seven drafts are mostly of the half that is not,
    so that their places say too little of three."""
    survival = Survival(7)
    for _ in range(400):
        for accepted in (7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0):
            survival.learn(Counter({(7, accepted): 1}), asked=7)
    alone = survival.expected()[3]
    for _ in range(400):
        for tokens in (17, *[1] * 13):
            survival.learn_run(tokens, 7, (1, 3))
    true = 30 / (5 + 13)
    assert alone < 0.9 * true and survival.expected()[3] == pytest.approx(true, rel=0.05)


def test_what_runs_tell_is_within_what_windows_can_bring() -> None:
    survival = Survival(7)
    for _ in range(100):
        survival.learn_run(1, 7, (1, 3))
    for _ in range(100):
        survival.learn(Counter({(7, 7): 16}), asked=7)
    assert survival.expected()[3] <= 4.0
    survival = Survival(7)
    for _ in range(100):
        survival.learn_run(16, 7, (1, 3))
    for _ in range(100):
        survival.learn(Counter({(7, 0): 16}), asked=7)
    assert survival.expected()[3] >= 1.0


def test_runs_of_another_depth_are_forgotten() -> None:
    survival = Survival(7)
    survival.learn_run(16, 7, (1, 3))
    survival.learn_run(5, 5, (1, 3))
    assert survival._needed == {5: 1.0, 1: 3.0, 3: 2.0}


def test_the_policy_learns_of_runs_where_steps_cost_by_their_tokens() -> None:
    told = {}
    for ragged in (True, False):
        policy = policy_of(0, 1, 3, ragged=ragged)
        loop = Loop(policy, rows=2)
        loop.right = {Row(1): 2, Row(2): 3}
        loop.run(200)
        told[ragged] = policy._survival._needed.keys()
    assert told == {True: {1, 3}, False: set()}


# --- trials ---


@pytest.mark.parametrize(("rows", "longer"), [(1, LONGEST), (4, LONGEST // 4), (8, 2), (64, 2)])
def test_trials_are_longer_where_times_differ_much(rows: int, longer: int) -> None:
    for ragged in (True, False):
        policy = policy_of(0, 3, ragged=ragged)
        policy._load = Load(rows, 100 * rows)
        steps = MEASURE + longer * ragged
        assert [policy._measuring(depth).steps for depth in (3, 0)] == [steps, steps + WARM]
    assert Trial(3, True).steps == 1


def test_few_windows_tell_more_where_there_are_few() -> None:
    told = []
    for ragged, tokens in ((True, SOONER), (False, TOKENS)):
        policy = policy_of(0, 3, ragged=ragged)
        policy._survival.learn(Counter({(3, 3): 4, (3, 0): 12}))
        assert policy._survival._brought[3].foretold == tokens
        told.append(policy._survival._brought[3].ratio)
    assert abs(told[0] - 1) > abs(told[1] - 1) > 0


@pytest.mark.parametrize("ragged", [True, False])
def test_the_first_window_after_others_begins_where_those_end(*, ragged: bool) -> None:
    """So it does not tell what such windows bring when they follow one another."""
    policy = policy_of(0, 1, 3, ragged=ragged)
    loop = Loop(policy, rows=1)
    loop.right = {Row(1): 3}
    loop.seconds = {1: 0.010, 2: 0.020, 4: 0.038}.__getitem__  # type: ignore[method-assign]
    loop.run(400)
    assert policy._settled == 3
    learned = list[tuple[int, bool]]()
    learn = policy._survival.learn

    def watched(windows: Counter[tuple[int, int]], *, alike: bool = True, **rest: int) -> None:
        learned.extend([(drafts, alike) for drafts, _ in windows.elements()])
        learn(windows, alike=alike, **rest)  # type: ignore[arg-type]

    policy._survival.learn = watched  # type: ignore[method-assign, assignment]
    loop.run(2000)
    ones = Counter(alike for drafts, alike in learned if drafts == 1)
    assert ones[True] >= 3
    assert ones[False] == (ones[True] // (MEASURE + LONGEST - 1) if ragged else 0)


# --- all of it ---


def of_the_best(batch: int, seed: int) -> float:
    """In turn with all fixed depths, as the machine is faster and slower, after a time of learning."""
    clock, texts = SharedClock(batch, random.Random(seed)), max(4, 3 * batch)
    policy = CostDepth(AdaptiveConfig.of({"candidate_steps": DEPTHS}), 3, ragged=True)  # type: ignore[arg-type]
    found, fixed, step = list[float](), {depth: list[float]() for depth in DEPTHS}, 0
    for _ in range(20):
        speed, step = run(policy, clock, step, texts)
        found.append(speed)
        for depth, speeds in fixed.items():
            speeds.append(run(Depth(depth), clock, 0, texts)[0])
    best = max(fixed.values(), key=lambda speeds: statistics.median(speeds[10:]))
    return statistics.median(mine / theirs for mine, theirs in zip(found[10:], best[10:], strict=True))


@pytest.mark.parametrize("batch", [1, 8])
def test_nearly_as_fast_as_the_best_fixed_depth(batch: int) -> None:
    found = [of_the_best(batch, seed) for seed in range(5)]
    assert statistics.median(found) > 0.98 and min(found) > 0.95, found
