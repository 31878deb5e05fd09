"""The gated delta rule's kernels for windows, launched: how they are cut, and which runs beside which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..places import ConvState, TemporalState
from ..step import StateStep
from ..twins.launch import LEAST, beside, early, join
from . import kernels
from .front import DeltaInputs, DeltaWeights

ORDER = ("head", "key", "value")


@dataclass(frozen=True)
class Tiles:
    """How the second launch is cut: value channels of a program, its warps, and how a window reads keys."""

    values: int
    warps: int
    keys: int = 16
    stages: int = 4


@dataclass(frozen=True)
class FoldTiles:
    """How folds are cut: few lanes fold in a step, so a program looks after several."""

    values: int
    lanes: int
    warps: int


FOLD = FoldTiles(values=32, lanes=8, warps=2)
DEFAULT_TILES = Tiles(values=32, warps=1)
FEW_LANES = 32
"""Those that fold do so in the one launch; more channels to a program would not fit into its registers."""
FEW_TILES = Tiles(values=16, warps=1)


@dataclass(frozen=True)
class Scratch:
    """What `front` leaves for `main`; of one step's size, shared by all layers."""

    old: Tensor
    gain: Tensor
    mix: Tensor
    mid: Tensor
    mid_gain: Tensor

    @staticmethod
    def allocate(lanes: int, value_heads: int, window: int, held: int, device: torch.device) -> Scratch:
        tokens, places = padded(window), max(LEAST, triton.next_power_of_2(held))

        def empty(*shape: int) -> Tensor:
            return torch.empty(lanes, value_heads, *shape, device=device)

        return Scratch(
            old=empty(2 * tokens, places),
            gain=empty(2 * tokens),
            mix=empty(2 * tokens, tokens),
            mid=empty(places),
            mid_gain=empty(),
        )


def padded(window: int) -> int:
    """Keys and queries of a window are stacked: together they must be as wide as the narrowest product."""
    return max(LEAST // 2, triton.next_power_of_2(window))


def windows(
    qk: Tensor,
    v: Tensor,
    log_g: Tensor,
    beta: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    *,
    scale: float,
    scratch: Scratch | None = None,
    tiles: Tiles = DEFAULT_TILES,
) -> Tensor:
    """Absorb the step's windows, chains only; as `ops.journal.advance` does for GatedDelta.

    qk  [tokens, 2, H, K]: queries, which are scaled here, and keys as the journal keeps them
    """
    lanes, grid = step.num_windows, step.grid
    heads, key_dim = qk.shape[2:]
    value_heads, value_dim = v.shape[1:]
    if scratch is None:
        scratch = Scratch.allocate(lanes, value_heads, step.longest_window, step.most_held, v.device)
    shape: dict[str, Any] = {
        "H": heads,
        "GROUP": value_heads // heads,
        "K": key_dim,
        "JP": max(LEAST, triton.next_power_of_2(step.most_held)),
        "CAP": pool.capacity,
    }
    blocks = (triton.cdiv(value_dim, tiles.values), value_heads, lanes)
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    cursors = (step.rows, step.counts, step.offsets, step.position)
    prepared = (qk, log_g, beta, pool.journal["k"], pool.journal["log_g"])
    strides = (log_g.stride(0), beta.stride(0), scale)
    absorbed = _absorbed(qk, v, out, pool)
    if step.longest_window <= 1:
        kernels.front_one[(heads, lanes)](
            *prepared, scratch.old, scratch.mix, *cursors, step.end_base, *strides, **shape, num_warps=1
        )
        _main_one(qk, v, pool, step, out, scratch, tiles, shape)
        return out
    shape |= {"TP": padded(step.longest_window), "J": grid}
    coefficients = (scratch.old, scratch.gain, scratch.mix, scratch.mid, scratch.mid_gain)
    kernels.front[(heads, lanes)](
        *prepared, *coefficients, *cursors, step.end_base, *strides, **shape, num_warps=1
    )
    shape |= {"V": value_dim, "BV": tiles.values, "BK": tiles.keys}
    arguments = (*absorbed, *coefficients, *cursors, *slots, v.stride(0))
    launch = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    with beside(v.device):
        kernels.main[blocks](*arguments, **shape, **launch, FOLDS=True)
    kernels.main[blocks](*arguments, **shape, **launch, FOLDS=False)
    join(v.device)
    return out


def decode(
    inputs: DeltaInputs,
    weights: DeltaWeights,
    conv: ConvState,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    *,
    eps: float,
) -> Tensor:
    """Windows of one token, from projections to what the rule gives: [tokens, HV, V], as `Ops.delta_net`."""
    value_heads, key_dim, value_dim = pool.saved.shape[1:]
    qkv = inputs.qkv
    tokens, channels = qkv.shape
    lanes, values = step.num_windows, value_heads * value_dim
    heads = (channels - values) // 2 // key_dim
    qk = torch.empty(tokens, 2, heads, key_dim, dtype=qkv.dtype, device=qkv.device)
    v = torch.empty(tokens, value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    scratch = Scratch.allocate(lanes, value_heads, 1, step.most_held, qkv.device)
    shape: dict[str, Any] = {
        "H": heads,
        "GROUP": value_heads // heads,
        "K": key_dim,
        "JP": max(LEAST, triton.next_power_of_2(step.most_held)),
        "CAP": pool.capacity,
    }
    kernels.front_token[(heads + triton.cdiv(values, key_dim), lanes)](
        qkv, inputs.a, inputs.b, weights.conv, weights.a_log, weights.dt_bias, conv.saved, conv.ring,
        pool.journal["k"], pool.journal["log_g"], qk, v, scratch.old, scratch.mix,
        step.rows, step.counts, step.offsets, step.position, step.base, step.end_base, step.read_slot,
        step.write_slot, qkv.stride(0), inputs.a.stride(0), inputs.b.stride(0), channels, weights.beta_scale,
        key_dim**-0.5, eps, **shape, W=weights.conv.shape[1], RING=conv.ring.shape[1], num_warps=1,
        **early(qkv.device),
    )  # fmt: skip
    _main_one(qk, v, pool, step, out, scratch, DEFAULT_TILES, shape)
    return out


def _main_one(
    qk: Tensor,
    v: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    scratch: Scratch,
    tiles: Tiles,
    shape: dict[str, Any],
) -> None:
    lanes, (value_heads, value_dim) = step.num_windows, v.shape[1:]
    shape = shape | {"V": value_dim, "J": step.grid}
    cursors = (step.rows, step.counts, step.offsets, step.position)
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    arguments = (*_absorbed(qk, v, out, pool), scratch.old, scratch.mix, *cursors, *slots, lanes, v.stride(0))
    if lanes <= FEW_LANES:
        blocks = (triton.cdiv(value_dim, FEW_TILES.values), value_heads, lanes)
        kernels.main_one[blocks](
            *arguments, **shape, BV=FEW_TILES.values, LANES=-1, num_warps=FEW_TILES.warps, **early(v.device)
        )
        return
    blocks = (triton.cdiv(value_dim, tiles.values), value_heads, lanes)
    with beside(v.device):
        folds = (triton.cdiv(value_dim, FOLD.values), value_heads, triton.cdiv(lanes, FOLD.lanes))
        kernels.main_one[folds](
            *arguments, **shape, BV=FOLD.values, LANES=FOLD.lanes, EARLY=False, num_warps=FOLD.warps
        )
    kernels.main_one[blocks](
        *arguments, **shape, BV=tiles.values, LANES=0, num_warps=tiles.warps, **early(v.device)
    )
    join(v.device)


def _absorbed(qk: Tensor, v: Tensor, out: Tensor, pool: TemporalState) -> tuple[Tensor, ...]:
    return (qk, v, out, pool.saved, pool.journal["k"], pool.journal["u"], pool.journal["log_g"])
