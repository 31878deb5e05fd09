"""The cost policy on the steps of an H200, replayed: with one policy for all that a server sees, one batch after
another, it has nearly the speed of whatever fixed depth is the best for each."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.adaptive import AdaptiveConfig
from holdfast.scheduler.cost_depth import CostDepth
from holdfast.scheduler.depth import Depth
from holdfast.scheduler.survival import Survival

from .replay import BATCHES, DEPTHS, MEASURED, Clock, run

LEARNING, RUNS = 10, 4


def speeds(policy: Depth, clock: Clock, runs: int, step: int = 0) -> tuple[list[float], int]:
    found = []
    for _ in range(runs):
        speed, step = run(policy, clock, step)
        found.append(speed)
    return found, step


def best_fixed(drafter: str, batch: int) -> float:
    return max(
        statistics.mean(speeds(Depth(depth), Clock(drafter, batch, random.Random(9)), RUNS)[0])
        for depth in DEPTHS
    )


def parts_of_best(
    drafter: str, seed: int, batches: tuple[int, ...] = BATCHES, *, waits: float = 0.0
) -> dict[int, float]:
    policy = CostDepth(AdaptiveConfig.of({"candidate_steps": DEPTHS}), 3, ragged=False)  # type: ignore[arg-type]
    parts, step = {}, 0
    for batch in batches:
        clock = Clock(drafter, batch, random.Random(seed), waits=waits)
        found, step = speeds(policy, clock, LEARNING + RUNS, step)
        parts[batch] = statistics.mean(found[LEARNING:]) / best_fixed(drafter, batch)
    return parts


@pytest.mark.parametrize("drafter", MEASURED)
def test_as_fast_as_the_best_fixed_depth(drafter: str) -> None:
    assert min(parts_of_best(drafter, seed=0, batches=(16,)).values()) > 0.95


def test_where_the_host_is_slow_to_begin_and_to_cease_there_are_fewer_looks() -> None:
    """The device waits for it for two steps' time whenever drafts are made again, or no longer."""
    found = [parts_of_best("eagle3", seed, batches=(16,), waits=500.0)[16] for seed in range(3)]
    assert statistics.median(found) > 0.98, found


@pytest.mark.slow
@pytest.mark.parametrize("drafter", MEASURED)
def test_as_fast_as_the_best_fixed_depth_of_each_batch(drafter: str) -> None:
    """Medians over seeds."""
    found = [parts_of_best(drafter, seed) for seed in range(5)]
    medians = {batch: statistics.median(parts[batch] for parts in found) for batch in BATCHES}
    assert all(medians[batch] > 0.975 for batch in BATCHES), medians


def test_long_windows_say_too_little_of_short_ones() -> None:
    """They end where the text is hard to guess, and the next begins there. A few short ones show it."""
    texts = MEASURED["mtp"]["accepted"][:16]
    survival, plain = Survival(7), Survival(7)
    windows = 0
    for text in texts * 12:
        position = 0
        while position < len(text):
            depth, windows = 3 if windows % 32 < 4 else 7, windows + 1
            accepted = min(depth, int(text[position]))
            survival.learn(Counter([(depth, accepted)]))
            plain.learn(Counter([(depth, accepted)]), alike=depth == 7)
            position += 1 + accepted
    true = statistics.mean(brought for text in texts for brought in in_windows(text, 3))
    assert plain.expected()[3] < 0.97 * true and survival.expected()[3] == pytest.approx(true, rel=0.02)


def in_windows(text: str, depth: int) -> Iterator[int]:
    position = 0
    while position < len(text):
        tokens = 1 + min(depth, int(text[position]))
        position += tokens
        yield tokens
