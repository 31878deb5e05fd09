"""Selective scan: journal form and chunk form against a float64 recurrence, alone and over the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.memory import oracle
from tests.memory.draws import FIXED_DECAYS
from tests.memory.driver import CONV, Driver, Setup, Work
from tests.memory.oracle import Absorbed, Array, Shape, Token
from tests.memory.traffic import drive
from torch import Tensor

from holdfast.config import CHUNK
from holdfast.memory.spec import ConvSpec, StateSpec, TensorSpec
from holdfast.ops.selective_scan.reference import SelectiveScan, recurrent
from holdfast.ops.step import StateStep

CHANNELS, STATE, GRID = 6, 5, 16
A = -torch.exp(torch.randn(CHANNELS, STATE, generator=torch.Generator().manual_seed(3)))
RULE = SelectiveScan(A)
STEPS = {"weak": 1e-4, "strong": 20.0, "violent": 300.0}
"""Time steps: a token's log-decays are these times A, which is around -1."""


def draw(kind: str, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """kind: one time step for every token and channel, or `mild`, `large` up to 60, or `mixed`: any of them"""
    generator = torch.Generator().manual_seed(seed)
    dt = torch.rand(tokens, CHANNELS, generator=generator)
    chance = torch.rand(tokens, CHANNELS, generator=generator)
    if kind == "large":
        dt = 60 * dt**4
    if kind == "mixed":
        for least, value in ((0.3, 1e-4), (0.92, 20.0), (0.96, 300.0)):
            dt = torch.where(chance > least, value, dt)
    return {
        "x": torch.randn(tokens, CHANNELS, generator=generator),
        "b": torch.randn(tokens, STATE, generator=generator),
        "c": torch.randn(tokens, STATE, generator=generator),
        "dt": torch.full_like(dt, STEPS[kind]) if kind in STEPS else dt,
    }


kinds = pytest.mark.parametrize("kind", [*STEPS, "mild", "large", "mixed"])


def start() -> Tensor:
    return torch.randn(CHANNELS, STATE, generator=torch.Generator().manual_seed(7))


def off(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of 1 + the largest value wanted."""
    return float((got.double() - wanted).abs().max() / (1 + wanted.abs().max()))


def by_journal(state: Tensor, inputs: dict[str, Tensor], at_once: int) -> tuple[Tensor, Tensor]:
    """No more than GRID tokens, `at_once` in a window: outputs, and the fold."""
    entries = {name: inputs[name][None, :0] for name in ("x", "b", "dt")}
    outputs = []
    for first in range(0, len(inputs["x"]), at_once):
        window = {name: x[None, first : first + at_once] for name, x in inputs.items()}
        chain = torch.ones(window["x"].shape[1], window["x"].shape[1], dtype=torch.bool).tril()
        result, fresh = RULE.attend(state[None], entries, window, chain)
        entries = {name: torch.cat((held, fresh[name]), 1) for name, held in entries.items()}
        outputs.append(result[0])
    return torch.cat(outputs), RULE.fold(state[None], entries)[0]


def test_the_definition() -> None:
    """`recurrent` against the formula written out for one channel at a time."""
    inputs = {name: x.double().numpy() for name, x in draw("mild", 5).items()}
    given = {name: torch.from_numpy(x) for name, x in inputs.items()}
    outputs, last = recurrent(start().double(), given, A)
    for channel in range(CHANNELS):
        state, a = start()[channel].double().numpy(), A[channel].double().numpy()
        for t in range(5):
            dt = inputs["dt"][t, channel]
            state = np.exp(dt * a) * state + dt * inputs["x"][t, channel] * inputs["b"][t]
            np.testing.assert_allclose(outputs[t, channel].numpy(), state @ inputs["c"][t], atol=1e-12)
        np.testing.assert_allclose(last[channel].numpy(), state, atol=1e-12)


@kinds
@pytest.mark.parametrize("at_once", [1, 5, GRID])
def test_journal_form_equals_the_recurrence(kind: str, at_once: int) -> None:
    inputs = draw(kind, GRID)
    outputs, state = by_journal(start(), inputs, at_once)
    wanted, last = recurrent(start().double(), inputs, A)
    assert off(outputs, wanted) < 1e-6 and off(state, last) < 1e-6


@kinds
def test_chunk_form_equals_the_recurrence(kind: str) -> None:
    inputs = draw(kind, 3 * CHUNK)
    outputs, states = RULE.chunk(start(), inputs, torch.float32)
    wanted, last = recurrent(start().double(), inputs, A)
    assert off(outputs, wanted) < 2e-6 and off(states[-1], last) < 2e-6
    for i in range(3):
        _, line = recurrent(start().double(), {name: x[: (i + 1) * CHUNK] for name, x in inputs.items()}, A)
        assert off(states[i], line) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cut_between_blocks_changes_no_bit(dtype: torch.dtype) -> None:
    inputs = draw("mixed", 4 * CHUNK)
    whole = RULE.chunk(start(), inputs, dtype)
    first = RULE.chunk(start(), {name: x[:CHUNK] for name, x in inputs.items()}, dtype)
    rest = RULE.chunk(first[1][-1], {name: x[CHUNK:] for name, x in inputs.items()}, dtype)
    for together, *parts in zip(whole, first, rest, strict=True):
        assert torch.equal(together, torch.cat(parts))
    assert torch.equal(whole[1], whole[1].to(dtype).float())


def test_rounded_activations_are_the_same_bits_in_every_form() -> None:
    """x, b and c in bfloat16: both forms compute from the rounded values and keep the rest in float32."""
    inputs = draw("mild", CHUNK)
    inputs |= {name: inputs[name].bfloat16() for name in "xbc"}
    wanted, last = recurrent(start().double(), inputs, A)
    outputs, states = RULE.chunk(start(), inputs, torch.float32)
    assert off(outputs, wanted) < 2e-6 and off(states[0], last) < 2e-6
    state, done = start(), []
    for first in range(0, CHUNK, GRID):
        result, state = by_journal(state, {name: x[first : first + GRID] for name, x in inputs.items()}, 3)
        done.append(result)
    assert off(torch.cat(done), wanted) < 2e-6 and off(state, last) < 2e-6


def test_a_token_sees_what_is_visible_and_nothing_else() -> None:
    """Hidden tokens, of other branches, neither add nor decay; nor do places that hold nothing."""
    inputs = draw("mixed", GRID)
    held = {name: inputs[name][None, :4].clone() for name in ("x", "b", "dt")}
    for entry in held.values():
        entry[:, 2:] = 0
    parents = [-1, 0, 0, 1, -1, 2, 5, 4, 3, 6, 8, 5]
    sees = torch.eye(12, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    window = {name: x[None, 4:] for name, x in inputs.items()}
    result, _ = RULE.attend(start()[None], held, window, sees)
    for node in range(12):
        path = [0, 1, *(4 + place for place in sees[node].nonzero().flatten().tolist())]
        wanted, _ = recurrent(start().double(), {name: x[path] for name, x in inputs.items()}, A)
        assert off(result[0, node], wanted[-1]) < 1e-6


# --- over the pool: the driver of tests/memory, told of another mixer --------------------------------------


SHAPE = Shape(key_heads=1, value_heads=1, key_dim=4, value_dim=3)


@dataclass(frozen=True)
class ScanSetup(Setup):
    """q, k, v and beta are c, b, x and dt here, each of one head; log_g is not looked at."""

    shape: Shape = SHAPE

    @property
    def spec(self) -> StateSpec:
        shape = self.shape
        sizes = {"channel": shape.value_dim, "state": shape.key_dim}
        order = ("state", "channel") if self.backend == "reference_kv" else tuple(sizes)
        per_channel = TensorSpec({"channel": shape.value_dim}, torch.float32)
        return StateSpec(
            conv={CONV: ConvSpec(shape.channels, shape.width, torch.float32)},
            temporal=TensorSpec(sizes, self.state_dtype, order=order),
            entry={
                "x": per_channel,
                "b": TensorSpec({"state": shape.key_dim}, torch.float32),
                "dt": per_channel,
            },
        )

    @property
    def a(self) -> Tensor:
        """For each channel and state another; where bits are compared, all but one forget nothing."""
        size = (self.shape.value_dim, self.shape.key_dim)
        if self.decay == "exactly":
            return torch.zeros(size).index_fill_(0, torch.tensor([0]), -1e4)
        strongest = FIXED_DECAYS.get(self.decay, -300.0)
        weakest = strongest / 4 if self.decay in FIXED_DECAYS else -1e-4
        return -torch.logspace(math.log10(-weakest), math.log10(-strongest), math.prod(size)).reshape(size)


class ScanDriver(Driver):
    def __init__(self, setup: ScanSetup, seed: int) -> None:
        super().__init__(setup, seed)
        self.a = setup.a

    def run_ops(self, inputs: dict[str, Tensor], step: StateStep) -> tuple[Tensor, Tensor]:
        mixed = self.ops.causal_conv(inputs["x"], self.weight, self.bias, self.conv, step)
        x, b, c = (inputs[name][:, 0] for name in "vkq")
        dt = inputs["beta"].expand_as(x).contiguous()
        return self.ops.selective_scan(x, b, c, dt, self.a, self.temporal, step)[:, None], mixed


def drive_scan(setup: ScanSetup, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> ScanDriver:
    driver = scan_driver(setup, seed, monkeypatch)
    drive(driver, steps)
    return driver


def scan_driver(setup: ScanSetup, seed: int, monkeypatch: pytest.MonkeyPatch) -> ScanDriver:
    """With an oracle of this mixer."""
    a = setup.a.double().numpy()[None]

    def add(state: Array, token: Token, u: Array) -> Array:
        return np.exp(token.beta[0] * a) * state + u[..., None] * token.k[:, None]

    def absorb(state: Array, token: Token) -> Absorbed:
        u = token.beta[:, None] * token.v
        state = add(state, token, u)
        return Absorbed(state, (state * token.q[:, None]).sum(-1), u)

    monkeypatch.setattr(oracle, "add", add)
    monkeypatch.setattr(oracle, "absorb", absorb)
    return ScanDriver(setup, seed)


GRIDS = [(16, 1, 64), (16, 5, 32), (8, 8, 8), (4, 2, 4), (1, 1, 4)]
grids = pytest.mark.parametrize(("grid", "window", "page"), GRIDS)
modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])


@grids
@modes
def test_traffic_equals_the_recurrence(
    monkeypatch: pytest.MonkeyPatch, grid: int, window: int, page: int, exact: bool
) -> None:
    """Windows of 0 to max_window tokens, random rejections, runs, exports, every line published."""
    setup = ScanSetup(grid, window, page, exact=exact)
    driver = drive_scan(setup, grid * 100 + window, 8 if exact else 25, monkeypatch)
    assert driver.folds


@modes
@pytest.mark.parametrize("decay", ["weak", "strong", "violent"])
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
def test_traffic_with_decays_from_hardly_any_to_all(
    monkeypatch: pytest.MonkeyPatch, decay: str, backend: str, exact: bool
) -> None:
    """In either axis order."""
    setup = ScanSetup(16, 5, 16, decay=decay, exact=exact, backend=backend)
    drive_scan(setup, 3, 6 if exact else 15, monkeypatch)


@grids
def test_a_bfloat16_state_is_rounded_at_the_lines_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, grid: int, window: int, page: int
) -> None:
    """Inputs whose sums float32 holds exactly: the rounded recurrence and the pool agree in every bit."""
    for exact in (False, True):
        setup = ScanSetup(grid, window, page, state_dtype=torch.bfloat16, decay="exactly", exact=exact)
        drive_scan(setup, 5, 6 if exact else 20, monkeypatch)


@grids
def test_trees_equal_the_recurrence(
    monkeypatch: pytest.MonkeyPatch, grid: int, window: int, page: int
) -> None:
    driver = scan_driver(ScanSetup(grid, window, page, rows=2), 6, monkeypatch)
    driver.start(1)
    driver.start(2)
    for _ in range(15):
        work = []
        for row in (1, 2):
            nodes = driver.rng.randint(0, window)
            parents = tuple(driver.rng.randint(-1, node - 1) for node in range(nodes))
            work.append(Work(row, nodes, parents=parents, leaf=driver.rng.randint(-1, nodes - 1)))
        driver.step(work)
