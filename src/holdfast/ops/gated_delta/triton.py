"""The gated delta rule's kernels for windows, launched: how they are cut, and which runs beside which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..places import TemporalState
from ..step import StateStep
from ..twins.launch import LEAST, beside, join
from . import kernels

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
    absorbed: tuple[Any, ...] = (
        qk,
        v,
        out,
        pool.saved,
        pool.journal["k"],
        pool.journal["u"],
        pool.journal["log_g"],
    )
    if step.longest_window <= 1:
        kernels.front_one[(heads, lanes)](
            *prepared, scratch.old, scratch.mix, *cursors, step.end_base, *strides, **shape, num_warps=1
        )
        shape |= {"V": value_dim, "J": grid}
        arguments = (*absorbed, scratch.old, scratch.mix, *cursors, *slots, lanes, v.stride(0))
        with beside(v.device):
            folds = (triton.cdiv(value_dim, FOLD.values), value_heads, triton.cdiv(lanes, FOLD.lanes))
            kernels.main_one[folds](
                *arguments, **shape, BV=FOLD.values, LANES=FOLD.lanes, num_warps=FOLD.warps
            )
        kernels.main_one[blocks](*arguments, **shape, BV=tiles.values, LANES=0, num_warps=tiles.warps)
    else:
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
