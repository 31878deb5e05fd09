"""The delta rule with a gate for every channel: both forms against a float64 recurrence, alone and over the pool."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.memory import oracle
from tests.memory.driver import Driver, Setup, Work
from tests.memory.oracle import Absorbed, Array, Shape, Token
from tests.memory.traffic import drive
from torch import Tensor
from torch.nn import functional as F

from holdfast.config import CHUNK
from holdfast.memory.spec import StateSpec, TensorSpec
from holdfast.ops.kda.reference import KDA, recurrent
from holdfast.ops.step import StateStep

HEADS, KEY, VALUE, GRID = 3, 6, 5, 16
RULE = KDA()
GATES = {"weak": -1e-4, "strong": -20.0, "violent": -300.0}


def draw(kind: str, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """kind: one log-gate for every token and channel; `mild`, up to -0.5; `open` or `shut`, near 1 or near 0 with an
    exception here and there; or `mixed`: any of them"""
    generator = torch.Generator().manual_seed(seed)
    log_g = -0.5 * torch.rand(tokens, HEADS, KEY, generator=generator)
    chance = torch.rand(tokens, HEADS, KEY, generator=generator)
    levels = {
        "mixed": ((0.3, -1e-4), (0.9, -20.0), (0.95, -300.0)),
        "open": ((0.0, -1e-6), (0.97, -300.0)),
        "shut": ((0.0, -90.0), (0.8, -1e-4)),
    }
    for least, value in levels.get(kind, ()):
        log_g = torch.where(chance > least, value, log_g)
    return {
        "q": torch.randn(tokens, HEADS, KEY, generator=generator),
        "k": F.normalize(torch.randn(tokens, HEADS, KEY, generator=generator), dim=-1),
        "v": torch.randn(tokens, HEADS, VALUE, generator=generator),
        "log_g": torch.full_like(log_g, GATES[kind]) if kind in GATES else log_g,
        "beta": torch.rand(tokens, HEADS, generator=generator),
    }


kinds = pytest.mark.parametrize("kind", [*GATES, "mild", "open", "shut", "mixed"])


def start() -> Tensor:
    return torch.randn(HEADS, VALUE, KEY, generator=torch.Generator().manual_seed(7))


def off(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, in units of 1 + the largest value wanted."""
    return float((got.double() - wanted).abs().max() / (1 + wanted.abs().max()))


def no_entries(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        "k": inputs["k"][None, :0],
        "u": inputs["v"][None, :0].float(),
        "log_g": inputs["log_g"][None, :0],
    }


def by_journal(state: Tensor, inputs: dict[str, Tensor], at_once: int) -> tuple[Tensor, Tensor]:
    """No more than GRID tokens, `at_once` in a window: outputs, and the fold."""
    entries, outputs = no_entries(inputs), []
    for first in range(0, len(inputs["v"]), at_once):
        window = {name: x[None, first : first + at_once] for name, x in inputs.items()}
        chain = torch.ones(window["v"].shape[1], window["v"].shape[1], dtype=torch.bool).tril()
        result, fresh = RULE.attend(state[None], entries, window, chain)
        entries = {name: torch.cat((held, fresh[name]), 1) for name, held in entries.items()}
        outputs.append(result[0])
    return torch.cat(outputs), RULE.fold(state[None], entries)[0]


def test_the_definition() -> None:
    """`recurrent` against the formula written out for one head at a time."""
    inputs = {name: x.double().numpy() for name, x in draw("mild", 5).items()}
    outputs, last = recurrent(start().double(), {name: torch.from_numpy(x) for name, x in inputs.items()})
    for head in range(HEADS):
        state = start()[head].double().numpy().T  # [K, V]
        for t in range(5):
            q, k, v, log_g = (inputs[name][t, head] for name in ("q", "k", "v", "log_g"))
            u = inputs["beta"][t, head] * (v - state.T @ (np.exp(log_g) * k))
            state = np.diag(np.exp(log_g)) @ state + np.outer(k, u)
            np.testing.assert_allclose(outputs[t, head].numpy(), state.T @ q, atol=1e-12)
        np.testing.assert_allclose(last[head].numpy(), state.T, atol=1e-12)


@kinds
@pytest.mark.parametrize("at_once", [1, 5, GRID])
def test_journal_form_equals_the_recurrence(kind: str, at_once: int) -> None:
    inputs = draw(kind, GRID)
    outputs, state = by_journal(start(), inputs, at_once)
    wanted, last = recurrent(start().double(), inputs)
    assert off(outputs, wanted) < 1e-6 and off(state, last) < 1e-6


@kinds
def test_chunk_form_equals_the_recurrence(kind: str) -> None:
    inputs = draw(kind, 3 * CHUNK)
    outputs, states = RULE.chunk(start(), inputs, torch.float32)
    wanted, last = recurrent(start().double(), inputs)
    assert off(outputs, wanted) < 2e-6 and off(states[-1], last) < 2e-6
    for i in range(3):
        _, line = recurrent(start().double(), {name: x[: (i + 1) * CHUNK] for name, x in inputs.items()})
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
    """q, k and v in bfloat16: both forms compute from the rounded values and keep the rest in float32."""
    inputs = draw("mild", CHUNK)
    inputs |= {name: inputs[name].bfloat16() for name in "qkv"}
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
    inputs = draw("mixed", GRID)
    _, held = RULE.attend(
        start()[None],
        no_entries(inputs),
        {name: x[None, :2] for name, x in inputs.items()},
        torch.ones(2, 2, dtype=torch.bool).tril(),
    )
    held = {name: F.pad(entry.transpose(1, -1), (0, 2)).transpose(1, -1) for name, entry in held.items()}
    parents = [-1, 0, 0, 1, -1, 2, 5, 4, 3, 6, 8, 5]
    sees = torch.eye(12, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    window = {name: x[None, 4:] for name, x in inputs.items()}
    result, _ = RULE.attend(start()[None], held, window, sees)
    for node in range(12):
        path = [0, 1, *(4 + place for place in sees[node].nonzero().flatten().tolist())]
        wanted, _ = recurrent(start().double(), {name: x[path] for name, x in inputs.items()})
        assert off(result[0, node], wanted[-1]) < 1e-6


# --- over the pool: the driver of tests/memory, told of another mixer --------------------------------------

SPREAD = np.array([1.0, 1e-3, 0.3, 0.0])
"""A head's gate as the driver draws it becomes one for each channel of a key."""


SHAPE = Shape(key_heads=2, value_heads=2, key_dim=4, value_dim=3)


@dataclass(frozen=True)
class KdaSetup(Setup):
    shape: Shape = SHAPE

    @property
    def spec(self) -> StateSpec:
        plain = super().spec
        return replace(
            plain, entry={**plain.entry, "log_g": TensorSpec(plain.entry["k"].sizes, torch.float32)}
        )


class KdaDriver(Driver):
    def run_ops(self, inputs: dict[str, Tensor], step: StateStep) -> tuple[Tensor, Tensor]:
        mixed = self.ops.causal_conv(inputs["x"], self.weight, self.bias, self.conv, step)
        log_g = inputs["log_g"][..., None] * torch.from_numpy(SPREAD).float()
        q, k, v, beta = (inputs[name] for name in ("q", "k", "v", "beta"))
        return self.ops.kda(q, k, v, log_g, beta, self.temporal, step), mixed


def gates(token: Token) -> Array:
    return np.exp(token.log_g[:, None] * SPREAD.astype(np.float32).astype(float))[:, None]


def add(state: Array, token: Token, u: Array) -> Array:
    return gates(token) * state + u[..., None] * token.k[:, None]


def absorb(state: Array, token: Token) -> Absorbed:
    recalled = (gates(token) * state * token.k[:, None]).sum(-1)
    u = token.beta[:, None] * (token.v - recalled)
    state = add(state, token, u)
    return Absorbed(state, (state * token.q[:, None]).sum(-1), u)


@pytest.fixture(autouse=True)
def kda_is_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "absorb", absorb)
    monkeypatch.setattr(oracle, "add", add)


GRIDS = [(16, 1, 64), (16, 5, 32), (8, 8, 8), (4, 2, 4), (1, 1, 4)]
grids = pytest.mark.parametrize(("grid", "window", "page"), GRIDS)
modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])


@grids
@modes
def test_traffic_equals_the_recurrence(grid: int, window: int, page: int, exact: bool) -> None:
    """Windows of 0 to max_window tokens, random rejections, runs, exports, every line published."""
    driver = KdaDriver(KdaSetup(grid, window, page, exact=exact), seed=grid * 100 + window)
    drive(driver, 8 if exact else 25)
    assert driver.folds


@modes
@pytest.mark.parametrize("decay", ["weak", "strong", "violent"])
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
def test_traffic_with_decays_from_hardly_any_to_all(decay: str, backend: str, exact: bool) -> None:
    """In either axis order."""
    setup = KdaSetup(16, 5, 16, decay=decay, exact=exact, backend=backend)
    drive(KdaDriver(setup, seed=3), 6 if exact else 15)


@grids
def test_a_bfloat16_state_is_rounded_at_the_lines_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, grid: int, window: int, page: int
) -> None:
    """Inputs whose sums float32 holds exactly: the rounded recurrence and the pool agree in every bit."""
    monkeypatch.setattr(sys.modules[__name__], "SPREAD", np.array([10.0, 0.0, 10.0, 0.0]))
    for exact in (False, True):
        setup = KdaSetup(grid, window, page, state_dtype=torch.bfloat16, decay="exactly", exact=exact)
        drive(KdaDriver(setup, seed=5), 6 if exact else 20)


@grids
def test_trees_equal_the_recurrence(grid: int, window: int, page: int) -> None:
    driver = KdaDriver(KdaSetup(grid, window, page, rows=2), seed=6)
    driver.start(1)
    driver.start(2)
    for _ in range(15):
        work = []
        for row in (1, 2):
            nodes = driver.rng.randint(0, window)
            parents = tuple(driver.rng.randint(-1, node - 1) for node in range(nodes))
            work.append(Work(row, nodes, parents=parents, leaf=driver.rng.randint(-1, nodes - 1)))
        driver.step(work)
