"""The Triton kernels for windows against the reference: the same outputs, journals and checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdfast.ops import journal
from holdfast.ops.backend import Ops
from holdfast.ops.gated_delta.front import DeltaInputs, DeltaWeights
from holdfast.ops.gated_delta.reference import GatedDelta
from holdfast.ops.places import Checkpoints, ConvState, TemporalState
from holdfast.ops.rounding import GREATEST

from .steps import (
    DEVICE,
    GRID,
    WINDOW,
    Heads,
    Lane,
    conv_pool,
    delta_inputs,
    delta_pool,
    make_step,
    on_device,
    random_tree,
    seeded,
)

pytest.importorskip("triton")
from holdfast.ops.gated_delta import triton as twin

HEADS = [Heads(2, 4, 16, 6), Heads(1, 1, 16, 4), Heads(3, 3, 16, 32), Heads(1, 3, 32, 16)]
BESIDE = 20
"""Folds go to the slot so many further on."""
everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow
KV = (0, 1, 3, 2)
"""The twin stores [key, value], the logical order is [value, key]."""


def filled_pool(
    heads: Heads, lanes: list[Lane], seed: int, dtype: torch.dtype, decay: str, beside: int = BESIDE
) -> TemporalState:
    """Checkpoints and entries where the lanes have them, NaN everywhere else."""
    rows, slots = max(lane.row for lane in lanes), max(lane.slot for lane in lanes) + beside
    window = max(WINDOW, *(0 if lane.is_run else lane.count for lane in lanes))
    pool = delta_pool(rows, slots, heads, dtype=dtype, swapped=True, window=window)
    generator = seeded(seed)
    for number, lane in enumerate(lanes):
        if not lane.row:
            continue
        if lane.base:
            state = torch.randn(1, *pool.saved.shape[1:], generator=generator)
            row, slot, base = (torch.tensor([x]) for x in (lane.row, lane.slot, lane.base))
            pool.store(Checkpoints(row, slot, base), state)
        entries = delta_inputs(lane.position - lane.base, heads, seed + number, decay)
        places = torch.arange(lane.base, lane.position) % pool.capacity
        pool.journal["k"][lane.row, places] = entries["k"]
        pool.journal["log_g"][lane.row, places] = entries["log_g"]
        pool.journal["u"][lane.row, places] = entries["v"]
    return moved(pool, DEVICE)


def moved(pool: TemporalState, device: torch.device, *, copied: bool = False) -> TemporalState:
    def there(x: torch.Tensor) -> torch.Tensor:
        return x.to(device, copy=copied)

    return TemporalState(
        saved=there(pool.saved),
        journal={name: there(x) for name, x in pool.journal.items()},
        scale=None if pool.scale is None else there(pool.scale),
    )


def copy(pool: TemporalState) -> TemporalState:
    return moved(pool, pool.saved.device, copied=True)


def agree_checkpoints(got: TemporalState, wanted: TemporalState, tolerance: float) -> None:
    """Of a scaled dtype, numbers may fall to either side of a tie, scales may not."""
    if got.scale is None or wanted.scale is None:
        return agree(got.saved, wanted.saved, tolerance)
    agree(got.scale, wanted.scale, 0.0)
    apart = (got.saved.float() - wanted.saved.float()).abs()
    assert float(apart.max()) <= 1 and float(apart.mean()) < 1e-3


def tolerance_of(dtype: torch.dtype) -> float:
    if dtype is torch.float32:
        return 2e-6
    return 1 / GREATEST[dtype] if dtype in GREATEST else float(torch.finfo(dtype).eps)


def agree(got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert torch.equal(got.isnan(), wanted.isnan()), "written where nothing should be, or not where it should"
    got, wanted = got.double().nan_to_num(), wanted.double().nan_to_num()
    assert float((got - wanted).norm()) <= tolerance * (1.0 + float(wanted.norm()))


def compare(
    heads: Heads,
    lanes: list[Lane],
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    decay: str,
    tree: bool = False,
) -> None:
    branches = random_tree(lanes, seed) if tree else None
    step = on_device(make_step(lanes, write_slots=[lane.slot + BESIDE for lane in lanes], tree=branches))
    inputs = delta_inputs(sum(lane.count for lane in lanes), heads, seed, decay)
    inputs = {name: x.to(DEVICE) for name, x in inputs.items()}
    expected = filled_pool(heads, lanes, seed + 100, dtype, decay)
    found = copy(expected)
    shape = inputs["v"].shape
    wanted = torch.full(shape, torch.nan, device=DEVICE)
    journal.advance(GatedDelta(KV), inputs, expected, step, wanted, exact=False)
    out = torch.full(shape, torch.nan, device=DEVICE)
    q, k = inputs.pop("q"), inputs.pop("k")
    qk, tiles = torch.stack((q / 0.5, k), 1), twin.Tiles(values=16, warps=1)
    twin.windows(qk, **inputs, pool=found, step=step, out=out, scale=0.5, tiles=tiles)
    tolerance = tolerance_of(dtype)
    agree(out, wanted, tolerance)
    agree_checkpoints(found, expected, tolerance)
    for name, ring in expected.journal.items():
        agree(found.journal[name], ring, tolerance)


def lanes_at(window: int, seed: int) -> list[Lane]:
    """Cold, in the middle, about to fold, crossing a line, short, empty, and padding."""
    draws = seeded(seed)
    lengths = [3, GRID - 1, GRID, GRID + WINDOW - 1]
    lanes = [Lane(row=1, count=window, run=False)]
    for row, length in enumerate(lengths, start=2):
        base = GRID * int(torch.randint(0, 5, (), generator=draws))
        lanes.append(Lane(row=row, count=window, position=base + length, base=base, slot=row, run=False))
    lanes.append(Lane(row=0, count=0))
    shorter = max(window - 1, 0)
    lanes.append(Lane(row=6, count=shorter, position=GRID + 3, base=GRID, slot=6, run=False))
    lanes.append(Lane(row=7, count=0, position=2 * GRID, base=GRID, slot=7))
    return lanes


@pytest.mark.parametrize("window", [1, 3])
def test_windows_equal_the_reference(window: int) -> None:
    compare(Heads(1, 2, 16, 6), lanes_at(window, window), seed=window, dtype=torch.float32, decay="mixed")


def test_a_narrow_checkpoint_is_rounded_before_it_is_used() -> None:
    dtype = (
        torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
    )  # the interpreter has no right bfloat16
    compare(Heads(1, 1, 16, 4), lanes_at(2, 9), seed=5, dtype=dtype, decay="mild")


@pytest.mark.parametrize("window", [1, 3])
def test_a_checkpoint_of_one_byte(window: int) -> None:
    compare(Heads(1, 2, 16, 4), lanes_at(window, 9), seed=5, dtype=torch.int8, decay="mild")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["float32", "int8"])
def test_in_a_tree_a_node_sees_its_ancestors_only(dtype: torch.dtype) -> None:
    compare(Heads(1, 2, 16, 4), lanes_at(4, 3), seed=3, dtype=dtype, decay="mild", tree=True)


@everywhere
@pytest.mark.parametrize("window", [2, 7, 16])
@pytest.mark.parametrize("decay", ["mild", "violent", "mixed"])
def test_every_tree(window: int, decay: str) -> None:
    for seed in range(3):
        compare(Heads(1, 2, 16, 4), lanes_at(window, seed), seed=seed, decay=decay, tree=True)


def test_a_step_of_nothing_but_folds() -> None:
    lanes = [Lane(row=2, count=0, position=2 * GRID, base=GRID, slot=2)]
    compare(Heads(1, 1, 16, 4), lanes, seed=6, dtype=torch.float32, decay="mild")


def decoding(
    heads: Heads,
    copies: int,
    dtype: torch.dtype = torch.float32,
    at: list[Lane] | None = None,
    grid: int = GRID,
) -> None:
    """From projections to outputs, beside the reference; so many times the lanes."""
    width = 4
    lanes = [
        replace(lane, row=lane.row and lane.row + 10 * i, slot=lane.slot and lane.slot + 10 * i)
        for i in range(copies)
        for lane in at or lanes_at(1, 3 + i)
    ]
    step = make_step(lanes, write_slots=[lane.slot + BESIDE * copies for lane in lanes], grid=grid)
    keys, values = heads.keys * heads.key_dim, heads.values * heads.value_dim
    tokens, channels = sum(lane.count for lane in lanes), 2 * keys + values
    generator = seeded(5)
    conv = conv_pool(10 * copies, 10 * copies + BESIDE * copies, channels, width)
    for lane in lanes:
        if lane.row and lane.base:
            conv.saved[lane.slot] = torch.randn(width - 1, channels, generator=generator)
        for position in range(max(lane.base, lane.position - conv.ring.shape[1]), lane.position):
            conv.ring[lane.row, position % conv.ring.shape[1]] = torch.randn(channels, generator=generator)
    wide = torch.randn(tokens, channels + 2 * heads.values, generator=generator)
    inputs = DeltaInputs(*wide.split((channels, heads.values, heads.values), -1))
    weights = DeltaWeights(
        torch.randn(channels, width, generator=generator),
        torch.randn(heads.values, generator=generator),
        torch.randn(heads.values, generator=generator),
        1.0,
    )
    pool = filled_pool(heads, lanes, 9, dtype, "mild", BESIDE * copies)
    there, found = copy(pool), ConvState(conv.saved.to(DEVICE), conv.ring.to(DEVICE))
    if DEVICE.type == "cpu":
        found = ConvState(conv.saved.clone(), conv.ring.clone())
    pool = moved(pool, torch.device("cpu"))
    wanted = Ops("kv", {"gated_delta": twin.ORDER}).delta_net(inputs, weights, conv, pool, step)
    projected = DeltaInputs(*(x.to(DEVICE) for x in (inputs.qkv, inputs.b, inputs.a)))
    other = DeltaWeights(*(x.to(DEVICE) for x in (weights.conv, weights.a_log, weights.dt_bias)), 1.0)
    out = torch.full((tokens, heads.values, heads.value_dim), torch.nan, device=DEVICE)
    twin.decode(projected, other, found, there, on_device(step), out, eps=1e-6)
    there, tolerance = moved(there, torch.device("cpu")), max(5e-6, tolerance_of(dtype))
    agree(out.cpu(), wanted, tolerance)
    agree_checkpoints(there, pool, tolerance)
    for name, ring in pool.journal.items():
        agree(there.journal[name], ring, tolerance)
    agree(found.saved.cpu(), conv.saved, 5e-6)
    agree(found.ring.cpu(), conv.ring, 5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["float32", "int8"])
def test_a_token_goes_from_projection_to_output(dtype: torch.dtype) -> None:
    decoding(Heads(1, 2, 16, 16), 1, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=["float32", "int8"])
def test_with_many_lanes_folds_have_a_launch_of_their_own(dtype: torch.dtype) -> None:
    assert 5 * len(lanes_at(1, 1)) > twin.FEW_LANES
    decoding(Heads(1, 1, 16, 16), 5, dtype)


def test_with_a_line_at_every_token_the_state_is_rewritten() -> None:
    lanes = [Lane(1, 1), Lane(2, 1, 1, 0, 2), Lane(3, 1, 3, 2, 3), Lane(0, 0), Lane(4, 1, 18, 17, 4)]
    decoding(Heads(1, 1, 16, 16), 5, at=lanes, grid=1)


@everywhere
@pytest.mark.parametrize("decay", ["mild", "mixed"])
def test_a_window_as_long_as_a_line(decay: str) -> None:
    compare(Heads(1, 2, 16, 4), lanes_at(GRID, 3), seed=3, decay=decay)


@everywhere
@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("heads", HEADS, ids=["grouped", "one", "wide", "three to one"])
@pytest.mark.parametrize("decay", ["weak", "mild", "strong", "violent", "mixed"])
def test_every_shape_and_decay(window: int, heads: Heads, decay: str) -> None:
    compare(heads, lanes_at(window, window), seed=window, dtype=torch.float32, decay=decay)
