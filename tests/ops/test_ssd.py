"""State space duality: journal form and chunk form against a float64 recurrence, alone and over the pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.memory import oracle
from tests.memory.driver import CONV, Driver, Setup, Work
from tests.memory.oracle import Absorbed, Array, Shape, Token
from tests.memory.traffic import drive
from torch import Tensor

from holdfast.config import CHUNK
from holdfast.memory.spec import ConvSpec, StateSpec, TensorSpec
from holdfast.ops.ssd.reference import SSD, recurrent
from holdfast.ops.step import StateStep

HEADS, CHANNELS, STATE, GRID = 6, 5, 4, 16
DECAYS = {"weak": -1e-4, "strong": -20.0, "violent": -300.0}
RULE = SSD()


@dataclass(frozen=True)
class Case:
    """decay: one log-decay for every token, or drawn `mild` or `mixed`; `large` is dt up to 60, A = -1."""

    decay: str
    groups: int = 2

    def draw(self, tokens: int, seed: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        dt = torch.rand(tokens, HEADS, generator=generator)
        kind = torch.rand(tokens, HEADS, generator=generator)
        log_decay = torch.full_like(dt, DECAYS.get(self.decay, 0.0))
        if self.decay == "large":
            dt = 60 * dt**4
            log_decay = -dt
        if self.decay in ("mild", "mixed"):
            log_decay = -0.5 * dt
        if self.decay == "mixed":
            for least, value in ((0.3, -1e-4), (0.92, -20.0), (0.96, -300.0)):
                log_decay = torch.where(kind > least, value, log_decay)
        return {
            "x": torch.randn(tokens, HEADS, CHANNELS, generator=generator),
            "b": torch.randn(tokens, self.groups, STATE, generator=generator),
            "c": torch.randn(tokens, self.groups, STATE, generator=generator),
            "dt": dt,
            "log_decay": log_decay,
        }


CASES = [Case("mild", 1), Case("mild", HEADS), *map(Case, (*DECAYS, "mild", "mixed", "large"))]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.decay}-{case.groups}")


def start(seed: int = 7) -> Tensor:
    return torch.randn(HEADS, CHANNELS, STATE, generator=torch.Generator().manual_seed(seed))


def off(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of 1 + the largest value wanted."""
    return float((got.double() - wanted).abs().max() / (1 + wanted.abs().max()))


def by_journal(state: Tensor, inputs: dict[str, Tensor], at_once: int) -> tuple[Tensor, Tensor]:
    """No more than GRID tokens, `at_once` in a window: outputs, and the fold."""
    entries = {name: inputs[name][None, :0] for name in ("x", "b", "dt", "log_decay")}
    outputs = []
    for first in range(0, len(inputs["x"]), at_once):
        window = {name: x[None, first : first + at_once] for name, x in inputs.items()}
        chain = torch.ones(window["x"].shape[1], window["x"].shape[1], dtype=torch.bool).tril()
        result, fresh = RULE.attend(state[None], entries, window, chain)
        entries = {name: torch.cat((held, fresh[name]), 1) for name, held in entries.items()}
        outputs.append(result[0])
    return torch.cat(outputs), RULE.fold(state[None], entries)[0]


def test_the_definition() -> None:
    """`recurrent` against the formula written out for one head at a time."""
    inputs = {name: x.double().numpy() for name, x in Case("mild", 3).draw(5).items()}
    outputs, last = recurrent(start().double(), {name: torch.from_numpy(x) for name, x in inputs.items()})
    for head in range(HEADS):
        state, group = start()[head].double().numpy(), head // 2
        for t in range(5):
            written = inputs["dt"][t, head] * np.outer(inputs["x"][t, head], inputs["b"][t, group])
            state = np.exp(inputs["log_decay"][t, head]) * state + written
            np.testing.assert_allclose(outputs[t, head].numpy(), state @ inputs["c"][t, group], atol=1e-12)
        np.testing.assert_allclose(last[head].numpy(), state, atol=1e-12)


@cases
@pytest.mark.parametrize("at_once", [1, 5, GRID])
def test_journal_form_equals_the_recurrence(case: Case, at_once: int) -> None:
    inputs = case.draw(GRID)
    outputs, state = by_journal(start(), inputs, at_once)
    wanted, last = recurrent(start().double(), inputs)
    assert off(outputs, wanted) < 1e-6 and off(state, last) < 1e-6


@cases
def test_chunk_form_equals_the_recurrence(case: Case) -> None:
    inputs = case.draw(3 * CHUNK)
    outputs, states = RULE.chunk(start(), inputs, torch.float32)
    wanted, last = recurrent(start().double(), inputs)
    assert off(outputs, wanted) < 2e-6 and off(states[-1], last) < 2e-6
    for i in range(3):
        _, line = recurrent(start().double(), {name: x[: (i + 1) * CHUNK] for name, x in inputs.items()})
        assert off(states[i], line) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cut_between_blocks_changes_no_bit(dtype: torch.dtype) -> None:
    inputs = Case("mixed").draw(4 * CHUNK)
    whole = RULE.chunk(start(), inputs, dtype)
    first = RULE.chunk(start(), {name: x[:CHUNK] for name, x in inputs.items()}, dtype)
    rest = RULE.chunk(first[1][-1], {name: x[CHUNK:] for name, x in inputs.items()}, dtype)
    for together, *parts in zip(whole, first, rest, strict=True):
        assert torch.equal(together, torch.cat(parts))
    assert torch.equal(whole[1], whole[1].to(dtype).float())


def test_rounded_activations_are_the_same_bits_in_every_form() -> None:
    """x, b and c in bfloat16: both forms compute from the rounded values and keep the rest in float32."""
    inputs = Case("mild").draw(CHUNK)
    inputs |= {name: inputs[name].bfloat16() for name in "xbc"}
    wanted, last = recurrent(start().double(), inputs)
    outputs, states = RULE.chunk(start(), inputs, torch.float32)
    assert off(outputs, wanted) < 2e-6 and off(states[0], last) < 2e-6
    state, done = start(), []
    for first in range(0, CHUNK, GRID):
        result, state = by_journal(state, {name: x[first : first + GRID] for name, x in inputs.items()}, 3)
        done.append(result)
    assert off(torch.cat(done), wanted) < 2e-6 and off(state, last) < 2e-6


def test_a_token_sees_what_is_visible_and_nothing_else() -> None:
    """Hidden tokens, of other branches, neither add nor decay; nor do places that hold nothing."""
    inputs = Case("mixed").draw(GRID)
    held = {name: inputs[name][None, :4].clone() for name in ("x", "b", "dt", "log_decay")}
    for entry in held.values():
        entry[:, 2:] = 0
    sees = torch.ones(12, 12, dtype=torch.bool).tril()
    sees[-1] = False
    sees[-1, [0, 5, 11]] = True
    window = {name: x[None, 4:] for name, x in inputs.items()}
    result, _ = RULE.attend(start()[None], held, window, sees)
    path = [0, 1, 4, 9, 15]
    wanted, _ = recurrent(start().double(), {name: x[path] for name, x in inputs.items()})
    assert off(result[0, -1], wanted[-1]) < 1e-6


# --- over the pool: the driver of tests/memory, told of another mixer --------------------------------------


@dataclass(frozen=True)
class SsdSetup(Setup):
    """q, k, v, log_g and beta are c, b, x, log_decay and dt here."""

    @property
    def spec(self) -> StateSpec:
        shape = self.shape
        sizes = {"head": shape.value_heads, "channel": shape.value_dim, "state": shape.key_dim}
        order = ("head", "state", "channel") if self.backend == "reference_kv" else tuple(sizes)
        per_head = TensorSpec({"head": shape.value_heads}, torch.float32)
        return StateSpec(
            conv={CONV: ConvSpec(shape.channels, shape.width, torch.float32)},
            temporal=TensorSpec(sizes, self.state_dtype, order=order),
            entry={
                "x": TensorSpec({"head": shape.value_heads, "channel": shape.value_dim}, torch.float32),
                "b": TensorSpec({"group": shape.key_heads, "state": shape.key_dim}, torch.float32),
                "dt": per_head,
                "log_decay": per_head,
            },
        )


class SsdDriver(Driver):
    def run_ops(self, inputs: dict[str, Tensor], step: StateStep) -> tuple[Tensor, Tensor]:
        mixed = self.ops.causal_conv(inputs["x"], self.weight, self.bias, self.conv, step)
        recurrent = (inputs[name] for name in ("v", "k", "q", "beta", "log_g"))
        return self.ops.ssd(*recurrent, self.temporal, step), mixed


def absorb(state: Array, token: Token) -> Absorbed:
    reads = np.arange(len(state)) * len(token.k) // len(state)
    u = token.beta[:, None] * token.v
    state = np.exp(token.log_g)[:, None, None] * state + u[..., None] * token.k[reads][:, None]
    return Absorbed(state, (state * token.q[reads][:, None]).sum(-1), u)


@pytest.fixture(autouse=True)
def ssd_is_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "absorb", absorb)


GRIDS = [(16, 1, 64), (16, 5, 32), (8, 8, 8), (4, 2, 4), (1, 1, 4)]
grids = pytest.mark.parametrize(("grid", "window", "page"), GRIDS)
modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])


@grids
@modes
def test_traffic_equals_the_recurrence(grid: int, window: int, page: int, exact: bool) -> None:
    """Windows of 0 to max_window tokens, random rejections, runs, exports, every line published."""
    driver = SsdDriver(SsdSetup(grid, window, page, exact=exact), seed=grid * 100 + window)
    drive(driver, 10 if exact else 40)
    assert driver.folds


@modes
@pytest.mark.parametrize("decay", ["weak", "strong", "violent"])
def test_traffic_with_decays_from_hardly_any_to_all(decay: str, exact: bool) -> None:
    drive(SsdDriver(SsdSetup(16, 5, 16, decay=decay, exact=exact), seed=3), 8 if exact else 20)


@modes
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
def test_traffic_in_either_axis_order(backend: str, exact: bool) -> None:
    shape = Shape(key_heads=2, value_heads=4, key_dim=5, value_dim=3)
    setup = SsdSetup(8, 4, 16, shape=shape, backend=backend, exact=exact)
    drive(SsdDriver(setup, seed=4), 8 if exact else 20)


@grids
def test_a_bfloat16_state_is_rounded_at_the_lines_and_nowhere_else(grid: int, window: int, page: int) -> None:
    """Inputs whose sums float32 holds exactly: the rounded recurrence and the pool agree in every bit."""
    for exact in (False, True):
        setup = SsdSetup(grid, window, page, state_dtype=torch.bfloat16, decay="exactly", exact=exact)
        drive(SsdDriver(setup, seed=5), 8 if exact else 25)


@grids
def test_trees_equal_the_recurrence(grid: int, window: int, page: int) -> None:
    driver = SsdDriver(SsdSetup(grid, window, page, rows=2), seed=6)
    driver.start(1)
    driver.start(2)
    for _ in range(15):
        work = []
        for row in (1, 2):
            nodes = driver.rng.randint(0, window)
            parents = tuple(driver.rng.randint(-1, node - 1) for node in range(nodes))
            work.append(Work(row, nodes, parents=parents, leaf=driver.rng.randint(-1, nodes - 1)))
        driver.step(work)


@pytest.mark.slow
@grids
@modes
def test_rings_wrap_for_a_thousand_steps(grid: int, window: int, page: int, exact: bool) -> None:
    driver = SsdDriver(SsdSetup(grid, window, page, exact=exact, rows=1), seed=2)
    drive(driver, 1000, runs=0.005, restarts=0.0)
