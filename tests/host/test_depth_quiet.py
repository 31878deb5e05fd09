"""The cost policy over long times and changing loads: how often it tries something else, and for whom it decides."""

from __future__ import annotations

import pytest

from holdfast.adaptive import AdaptiveConfig, Band
from holdfast.ids import Row
from holdfast.plan import Window
from holdfast.scheduler.cost_depth import LOOKING, OFTEN, SAME, CostDepth
from holdfast.scheduler.depth import Depth
from holdfast.scheduler.launched import LOOKED, Trial
from holdfast.scheduler.quiet import LEAST, LONG_ENOUGH, QUIET, Quiet
from holdfast.scheduler.step_costs import Belief, band

from .harness import Harness, make_limits, make_request
from .loop import Loop


def policy_of(*depths: int) -> CostDepth:
    return CostDepth(AdaptiveConfig(bands=(Band(1, depths),)), depths[-1], ragged=False)


def never_worth_it(policy: CostDepth) -> Loop:
    loop = Loop(policy, late=1)
    loop.seconds = lambda tokens: 1 + 0.5 * (tokens > 2)  # type: ignore[method-assign]
    return loop


def test_the_longer_no_drafts_were_worth_it_the_fewer_there_are() -> None:
    loop = never_worth_it(policy_of(0, 1, 3))
    made = loop.run(40_000)
    early, late = (sum(map(bool, made[first : first + 4000])) for first in (500, 36_000))
    assert 0 < late < 0.4 * early, (early, late)


def test_and_they_are_asked_for_as_often_as_ever_once_some_were_worth_it() -> None:
    policy = policy_of(0, 1, 3)
    loop = never_worth_it(policy)
    loop.run(QUIET)
    assert policy._vigilance == 1.0, "a change is followed within fifty steps"
    loop.run(60_000)
    assert policy._vigilance == LEAST
    loop.right = dict.fromkeys(loop.right, 3)
    loop.run(4000)
    assert policy._settled == 3
    loop.right = dict.fromkeys(loop.right, 0)
    loop.run(100)
    assert policy._settled == 0 and policy._vigilance == 1.0


def test_drafts_that_were_made_for_a_moment_were_a_mistake() -> None:
    quiet = Quiet()
    quiet.count(16, 4 * QUIET, drafts=False)
    for steps, expected in ((LONG_ENOUGH - 1, 1 / 2), (2, 1.0)):
        quiet.count(16, steps, drafts=True)
        assert quiet.vigilance(16) == expected
    quiet.count(16, 4 * QUIET, drafts=False)
    quiet.count(16, LONG_ENOUGH - 1, drafts=True)
    assert quiet.vigilance(16) == 1 / 2, "others than those before"


def test_it_is_quiet_for_so_many_rows() -> None:
    quiet = Quiet()
    quiet.count(16, 4 * QUIET, drafts=False)
    assert (quiet.vigilance(16), quiet.vigilance(1)) == (1 / 2, 1.0)


def long_quiet() -> CostDepth:
    policy = policy_of(0, 1, 3)
    never_worth_it(policy).run(1000)
    assert policy._settled == 0 and policy._looked_at
    policy._quiet = Quiet()
    policy._quiet.count(band(2), 16 * QUIET, drafts=False)
    assert policy._vigilance == 1 / 4
    return policy


def test_looks_are_paid_less_then_and_a_rest_lasts_as_long() -> None:
    policy = long_quiet()
    rates, accounts = policy._promises(policy._beliefs), policy._accounts_of(2)
    loses = policy._loses(Trial(policy._looked_at, True), rates)
    accounts[LOOKED], policy._earned = 0.0, 0.0
    assert policy._until_look(rates) == pytest.approx(4 * loses / LOOKING, rel=0.02)
    policy._earned = 100.0
    policy._pay(rates)
    assert accounts[LOOKED] == pytest.approx(100 * LOOKING / 4, rel=0.02)


def test_so_is_measuring_of_what_was_seen_often() -> None:
    policy = long_quiet()
    rates = {depth: policy._speed for depth in (0, 1, 3)}
    for seen, part in ((OFTEN - 1, 1.0), (OFTEN, 1 / 4), (10**6, LEAST)):
        policy._beliefs[3] = Belief(1.0, seen)
        assert policy._worth_measuring(3, rates) == part


def test_a_depth_is_measured_the_less_the_oftener_it_was_seen() -> None:
    policy = policy_of(0, 3, 7)
    loop = Loop(policy, late=1)
    loop.right = dict.fromkeys(loop.right, 7)
    loop.run(300)
    assert policy._settled == 7
    rates = {depth: policy._speed for depth in (0, 3, 7)}

    def part(steps: int) -> float:
        policy._beliefs[3] = Belief(0.01, steps)
        return policy._worth_measuring(3, rates)

    assert part(4) == 2.0 and part(20) == part(64) == 1.0
    assert part(256) == pytest.approx(0.5) and part(10**6) == LEAST


def test_nothing_unknown_is_tried_while_the_number_of_rows_changes() -> None:
    """It would never be known: the next step has another number."""
    policy = policy_of(0, 1, 3)
    never_worth_it(policy).run(200)
    policy._settled, policy._beliefs[1] = 0, Belief(0.5)
    for alike, chosen in ((0, (0, "best")), (SAME, (1, "explore"))):
        policy._alike = alike
        assert policy._best({0: 1000.0, 1: 2000.0, 3: 900.0}) == chosen


def test_requests_that_end_one_after_the_other_are_no_reason_to_try_anything() -> None:
    policy = policy_of(0, 1, 3)
    loop = Loop(policy, rows=16, late=1)
    loop.seconds = lambda tokens: 1 + 0.1 * tokens  # type: ignore[method-assign]
    loop.run(2000)
    while len(loop.windows) > 1:
        loop.windows.popitem()
        loop.run(1)
        assert policy.reason != "explore"


def best_alone_and_not_in_company() -> tuple[CostDepth, Loop]:
    """Three drafts for one request; for sixteen a step with them takes four times as long."""
    policy = policy_of(0, 3)
    loop = Loop(policy, rows=16, late=1)
    loop.right = dict.fromkeys(loop.right, 2)
    loop.seconds = lambda tokens: 4.0 if tokens > 16 else 1.0  # type: ignore[method-assign]
    loop.run(600)
    assert policy._settled == 0
    loop.windows = {Row(1): Window()}
    loop.run(600)
    assert policy._settled == 3
    return policy, loop


def test_nothing_is_tried_before_there_were_a_few_steps_of_them() -> None:
    policy, _ = best_alone_and_not_in_company()
    policy._settled = 0
    policy._accounts_of(16).update({LOOKED: 100.0, 3: 100.0})
    policy.expect(16, joining=15)
    assert (policy.decide(), policy.reason) == (0, "best")
    assert 0 < policy._holds <= SAME, "but soon after"


def test_those_who_run_no_longer_say_nothing_of_those_who_come() -> None:
    policy = policy_of(0, 3)
    loop = Loop(policy, rows=16, late=1)
    loop.right = dict.fromkeys(loop.right, 3)
    loop.run(200)
    loop.windows, loop.right = {Row(1): Window()}, {Row(1): 0}
    loop.run(60)
    assert policy._survival.rates()[0] < 0.2
    policy.expect(16, joining=15)
    assert policy._survival.rates()[0] < 0.2, "one of them stays"
    policy.expect(32, joining=32)
    assert policy._survival.rates()[0] > 0.7


def test_drafts_are_made_for_those_who_join() -> None:
    policy, _ = best_alone_and_not_in_company()
    policy.expect(16, joining=15)
    assert policy.decide() == 0
    policy, _ = best_alone_and_not_in_company()
    policy.expect(2, joining=1)
    assert policy.decide() == 3, "two were never seen, but are like one"


@pytest.mark.parametrize("steps", [0, 200])
def test_where_each_has_its_own_those_who_join_get_alike(steps: int) -> None:
    policy = CostDepth(AdaptiveConfig(bands=(Band(1, (0, 3)),)), 3, ragged=True)
    loop = Loop(policy, rows=2)
    loop.right = {Row(1): 3, Row(2): 0}
    loop.seconds = lambda tokens: 1 + 0.01 * tokens  # type: ignore[method-assign]
    loop.run(steps)
    policy.expect(16, joining=14)
    assert policy.decide() == 3 and {policy.share(Row(row)) for row in range(1, 17)} == {3}


def test_another_among_about_as_many_is_no_reason_to_decide_anew() -> None:
    policy = policy_of(0, 3)
    never_worth_it(policy).run(1000)
    before = policy._alike, policy._load, policy._holds
    policy.expect(2, joining=1)
    assert (policy._alike, policy._load, policy._holds) == before and before[0] > SAME


def test_nobody_sleeps_while_others_come() -> None:
    policy = policy_of(0, 3)
    loop = never_worth_it(policy)
    loop.run(1000)
    while policy._sleeps < 5:
        loop.run(1)
    policy._promises = lambda beliefs: {0: 1000.0, 3: 2000.0}  # type: ignore[method-assign]
    policy.expect(16, joining=14)
    assert loop.run(1) == [3] and not policy._awake


def test_who_is_announced_again_and_again_is_decided_for_once() -> None:
    """Because pages are too few, perhaps."""
    policy, loop = best_alone_and_not_in_company()
    made = []
    for _ in range(40):
        policy.expect(16, joining=15)
        made += loop.run(1)
    assert made[0] == 0 and set(made[10:]) == {3}


def test_what_was_best_for_as_many_rows_is_kept_if_another_is_hardly_better() -> None:
    policy, _ = best_alone_and_not_in_company()
    policy._promises = lambda beliefs: {0: 1000.0, 3: 1005.0}  # type: ignore[method-assign]
    policy.expect(16, joining=15)
    assert policy._settled == 0, "though three are in use"


class Told(Depth):
    def __init__(self) -> None:
        super().__init__(3)
        self.expected: list[tuple[int, int]] = []

    def expect(self, rows: int, *, joining: int) -> None:
        self.expected.append((rows, joining))


def test_the_scheduler_tells_who_may_join() -> None:
    told = Told()
    harness = Harness(make_limits(fold_every=4, max_window=4, max_num_seqs=2), drafts=told)
    for name in "abc":
        harness.submit(make_request(name, (1, 2), max_tokens=9))
    harness.drain()
    assert told.expected[0] == (2, 2), "the third has to wait for a row"
    assert set(told.expected[1:]) <= {(1, 1), (2, 1)} and told.expected[1:]
