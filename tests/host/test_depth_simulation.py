"""The cost policy on the benchmark's simulated clock: never much slower than the best fixed depth, nor than none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "adaptive_depth.py"
QWEN, LFM2 = "Qwen3.5-4B", "LFM2-1.2B"


@pytest.fixture(scope="module")
def sim() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("adaptive_depth", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_clock_gives_back_what_was_measured(sim: ModuleType) -> None:
    for model, (measured, _) in sim.MEASURED.items():
        machine = sim.Machine.of(model)
        for rows in (1, 64, 256):
            assert machine.seconds(rows, rows, 0, 0) == pytest.approx(measured[rows] * 1e-3)
        assert machine.seconds(16, 16, 0, 0) == pytest.approx(measured[16] * 1e-3, rel=0.1)
        assert machine.seconds(16, 64, 0, 0) == machine.seconds(16, 16, 0, 0), "weights are read once"
        assert machine.seconds(16, 65, 0, 0) > machine.seconds(16, 64, 0, 0), "a stair"


OTHERS = {
    "a large one": ({1: 20.0, 16: 20.5, 64: 21.5, 256: 26.0}, 64 * 1024),
    "a steep one": ({1: 2.0, 16: 2.6, 64: 4.5, 256: 16.0}, 24 * 1024),
    "dear tiles": ({1: 5.0, 16: 5.1, 64: 5.5, 256: 22.0}, 32 * 1024),
}
"""Step times that nobody measured."""


@pytest.fixture
def others(sim: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim, "MEASURED", sim.MEASURED | OTHERS)


def as_fast_as_any(sim: ModuleType, model: str, rows: int, rate: float, seed: int = 0) -> None:
    """From the first step on, with all that it takes to find out."""
    machine = sim.Machine.of(model)
    ran = sim.run(sim.cost(), machine, sim.Traffic(rows, lambda step, row: rate), 1000, seed=seed)
    best, none = sim.best_fixed(machine, rows, [rate])[1], sim.fixed_speed(machine, rows, [rate], 0)
    assert ran.speed() >= 0.97 * best
    assert ran.speed() >= 0.98 * none


CORNERS = [
    (QWEN, 1, 0.0),
    (QWEN, 1, 0.95),
    (QWEN, 16, 0.5),
    (QWEN, 64, 0.3),
    (LFM2, 64, 0.1),
    (LFM2, 64, 0.4),
    (LFM2, 64, 0.9),
]


@pytest.mark.parametrize(("model", "rows", "rate"), CORNERS)
def test_as_fast_as_the_best_fixed_depth(sim: ModuleType, model: str, rows: int, rate: float) -> None:
    as_fast_as_any(sim, model, rows, rate)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("rows", [1, 4, 16, 64, 128, 256])
@pytest.mark.parametrize("model", [QWEN, LFM2])
def test_as_fast_as_the_best_fixed_depth_everywhere(
    sim: ModuleType, model: str, rows: int, rate: float
) -> None:
    as_fast_as_any(sim, model, rows, rate)


@pytest.mark.slow
@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("rate", [0.0, 0.4, 0.6, 0.9])
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("model", OTHERS)
def test_on_machines_that_nobody_measured(
    sim: ModuleType, model: str, seed: int, rows: int, rate: float
) -> None:
    as_fast_as_any(sim, model, rows, rate, seed)


@pytest.mark.parametrize(("model", "rows"), [(QWEN, 1), (QWEN, 16), (LFM2, 64), (QWEN, 256)])
def test_a_change_is_followed_within_fifty_steps(sim: ModuleType, model: str, rows: int) -> None:
    """From nearly all to nothing and back: fifty steps later it is as fast as what is best then."""
    follows(sim, model, rows, [0.9, 0.0, 0.9], change=250)


@pytest.mark.slow
@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("change", [230, 247])
@pytest.mark.parametrize("rates", [[0.9, 0.0, 0.9], [0.0, 0.95, 0.0], [0.2, 0.9, 0.4]])
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("model", [QWEN, LFM2, *OTHERS])
def test_changes_are_followed_everywhere(
    sim: ModuleType, model: str, rows: int, rates: list[float], change: int
) -> None:
    follows(sim, model, rows, rates, change=change)


def follows(sim: ModuleType, model: str, rows: int, rates: list[float], *, change: int) -> None:
    """Medians of a few seeds: of one request, chance may say for a while that it is another text."""
    machine = sim.Machine.of(model)
    traffic = sim.Traffic(rows, lambda step, row: rates[(step - 1) // change])
    ran = [
        sim.run(sim.cost(), machine, traffic, change * len(rates), seed=change + seed) for seed in range(5)
    ]
    for turn, rate in enumerate(rates):
        best = sim.best_fixed(machine, rows, [rate])[1]
        speeds = sorted(one.speed(turn * change + 50, (turn + 1) * change) / best for one in ran)
        assert speeds[2] >= 0.97 and speeds[0] >= 0.92, speeds


@pytest.mark.parametrize(("rows", "rates"), [(16, [0.9, 0.1]), (64, [0.95, 0.0, 0.5, 0.3])])
def test_mixed_traffic(sim: ModuleType, rows: int, rates: list[float]) -> None:
    """Requests that are easy to guess beside others that are not, in steps that cost by their longest window."""
    machine = sim.Machine.of(QWEN)
    ran = sim.run(sim.cost(), machine, sim.Traffic(rows, lambda step, row: rates[row % len(rates)]), 1000)
    assert ran.speed() >= 0.97 * sim.best_fixed(machine, rows, rates)[1]


def test_where_steps_cost_by_their_tokens_each_request_gets_its_own(sim: ModuleType) -> None:
    """Half of the requests accept nearly all, and half nothing: no depth for all is as fast."""
    machine, rates = sim.Machine.of(LFM2), [0.95, 0.0]
    traffic = sim.Traffic(64, lambda step, row: rates[row % 2])
    ran = sim.run(sim.cost(ragged=True), machine, traffic, 600, ragged=True)
    assert ran.speed() > 1.1 * sim.best_fixed(machine, 64, rates)[1]


@pytest.mark.parametrize("rate", [0.4, 0.9])
def test_where_steps_cost_by_their_tokens_requests_that_are_alike_get_alike(
    sim: ModuleType, rate: float
) -> None:
    """Chance makes them look different; but drafts that only one row gets are waited for by all."""
    machine = sim.Machine.of(LFM2)
    traffic = sim.Traffic(32, lambda step, row: rate)
    ran = sim.run(sim.cost(ragged=True), machine, traffic, 600, ragged=True)
    assert ran.speed() >= 0.97 * sim.best_fixed(machine, 32, [rate])[1]


def test_contexts_that_grow(sim: ModuleType) -> None:
    machine, rows, rate = sim.Machine.of(QWEN), 64, 0.5
    traffic = sim.Traffic(rows, lambda step, row: rate, lambda step: 20 * step)
    ran = sim.run(sim.cost(), machine, traffic, 1000)
    best = max(
        sum([rows * sim.expected(rate, d)] * 1000)
        / sum(machine.seconds(rows, rows * (1 + d), d, rows * 20 * step) for step in range(1, 1001))
        for d in sim.DEPTHS
    )
    assert ran.speed() >= 0.97 * best
