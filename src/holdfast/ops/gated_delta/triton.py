"""The gated delta rule's kernels for windows, launched: how they are cut, and which runs beside which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..places import ConvState, TemporalState
from ..step import StateStep
from ..twins.launch import LEAST, FoldTiles, beside, early, folds_of, join, stops_at_lines, tree_of
from . import kernels, single_kernels, token_kernels
from .front import DeltaInputs, DeltaWeights

ORDER = ("head", "key", "value")


@dataclass(frozen=True)
class Tiles:
    """How the second launch is cut: value channels of a program, its warps, and how many keys it takes at a time; of
    windows, how many of these are on their way; of single tokens, how many channels are a thread's."""

    values: int
    warps: int
    keys: int = 16
    stages: int = 4
    wide: int = 4


WINDOW_TILES = Tiles(values=64, warps=2)
DECODE_TILES = {4: Tiles(32, 1, keys=4), 2: Tiles(32, 1, keys=8), 1: Tiles(64, 1, keys=8, wide=16)}
FOLD_TILES = {4: FoldTiles(32, 4, 1, 128), 2: FoldTiles(32, 4, 2, 128), 1: FoldTiles(32, 4, 4, 128)}
"""Of single tokens, by the bytes of a number in a checkpoint."""
REWRITE_TILES = FoldTiles(32, 1)
"""With a line at every token."""
FEW_LANES = 16
"""So many take one launch for everything, of windows one for lanes that fold and those that do not."""
FEW_TILES = Tiles(values=32, warps=2)


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
    tiles: Tiles | None = None,
) -> Tensor:
    """Absorb the step's windows; as `ops.journal.advance` does for GatedDelta.

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
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    cursors = (step.rows, step.counts, step.offsets, step.position)
    prepared = (qk, log_g, beta, pool.journal["k"], pool.journal["log_g"])
    strides = (log_g.stride(0), beta.stride(0), scale)
    absorbed = (qk, v, out, pool.saved, scales_of(pool), *journal_of(pool))
    if step.longest_window <= 1:
        with _Singles(qk, v, pool, step, out, scratch, shape).around_front(tiles):
            single_kernels.front_one[(heads, lanes)](
                *prepared, scratch.old, scratch.mix, *cursors, step.end_base, *strides, **shape, **early(v.device),
                num_warps=1,
            )  # fmt: skip
        return out
    few = lanes <= FEW_LANES
    ahead = early(v.device) if few else {"EARLY": False}
    tiles = tiles or (FEW_TILES if few else WINDOW_TILES)
    shape |= {"TP": padded(step.longest_window), "J": grid, "STOPS": stops_at_lines(pool, step)}
    coefficients = (scratch.old, scratch.gain, scratch.mix, scratch.mid, scratch.mid_gain)
    kernels.front[(heads, lanes)](
        *prepared, *coefficients, *cursors, step.end_base, *tree_of(step), *strides, **shape,
        TREE=step.tree is not None, **ahead,
        num_warps=1 if shape["TP"] < LEAST else 4,
    )  # fmt: skip
    shape |= {"V": value_dim, "BV": tiles.values, "BK": tiles.keys}
    arguments = (*absorbed, *coefficients, *cursors, *slots, v.stride(0))
    launch = {"num_warps": tiles.warps, "num_stages": tiles.stages, **ahead}
    main = kernels.main[(triton.cdiv(value_dim, tiles.values), value_heads, lanes)]
    if few:
        main(*arguments, **shape, **launch, FOLDS=kernels.ALL)
        return out
    with beside(v.device):
        main(*arguments, **shape, **launch, FOLDS=kernels.FOLDING)
    main(*arguments, **shape, **launch, FOLDS=kernels.NONE)
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
    tiles: Tiles | None = None,
) -> Tensor:
    """Windows of one token, from projections to what the rule gives: [tokens, HV, V], as `Ops.delta_net`."""
    value_heads, key_dim, value_dim = pool.saved.shape[1:]
    qkv = inputs.qkv
    tokens, channels = qkv.shape
    lanes, values = step.num_windows, value_heads * value_dim
    heads = (channels - values) // 2 // key_dim
    width = weights.conv.shape[1]
    shape: dict[str, Any] = {
        "H": heads,
        "GROUP": value_heads // heads,
        "K": key_dim,
        "JP": max(LEAST, triton.next_power_of_2(step.most_held)),
        "CAP": pool.capacity,
    }
    conv_shape = {"W": width, "RING": conv.ring.shape[1]}
    projected = (qkv, inputs.a, inputs.b, weights.conv, weights.a_log, weights.dt_bias, conv.saved, conv.ring)
    cursors = (step.rows, step.counts, step.offsets, step.position)
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    numbers = (
        qkv.stride(0), inputs.a.stride(0), inputs.b.stride(0), channels, weights.beta_scale, key_dim**-0.5, eps
    )  # fmt: skip
    if lanes <= FEW_LANES and step.grid >= width - 1:
        tiles = tiles or FEW_TILES
        token_kernels.whole_token[(triton.cdiv(value_dim, tiles.values), value_heads, lanes)](
            *projected, out, pool.saved, scales_of(pool), *journal_of(pool), *cursors, *slots, *numbers,
            **shape, **conv_shape, **early(qkv.device), V=value_dim, BV=tiles.values, J=step.grid,
            num_warps=tiles.warps,
        )  # fmt: skip
        return out
    qk = torch.empty(tokens, 2, heads, key_dim, dtype=qkv.dtype, device=qkv.device)
    v = torch.empty(tokens, value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    scratch = Scratch.allocate(lanes, value_heads, 1, step.most_held, qkv.device)
    with _Singles(qk, v, pool, step, out, scratch, shape).around_front(tiles):
        token_kernels.front_token[(heads + triton.cdiv(values, key_dim), lanes)](
            *projected, pool.journal["k"], pool.journal["log_g"], qk, v, scratch.old, scratch.mix,
            *cursors, *slots, *numbers, **shape, **conv_shape, **early(qkv.device), num_warps=1,
        )  # fmt: skip
    return out


@dataclass(frozen=True)
class _Singles:
    """Single tokens: what is launched around the launch that stands in front of the rule."""

    qk: Tensor
    v: Tensor
    pool: TemporalState
    step: StateStep
    out: Tensor
    scratch: Scratch
    shape: dict[str, Any]

    @property
    def folds_ahead(self) -> bool:
        """Numbers of one byte are bound by instructions, and gain nothing by what runs beside them."""
        return self.pool.saved.element_size() == 1 and self.step.grid > 1

    @contextmanager
    def around_front(self, tiles: Tiles | None) -> Iterator[None]:
        device = self.v.device
        if self.folds_ahead:
            with beside(device):
                self._fold()
        yield
        if self.folds_ahead:
            join(device)
            self._main(tiles)
        else:
            with beside(device):
                self._fold()
            self._main(tiles)
            join(device)

    def _fold(self) -> None:
        step, (value_heads, value_dim) = self.step, self.v.shape[1:]
        tiles = REWRITE_TILES if step.grid == 1 else FOLD_TILES[self.pool.saved.element_size()]
        programs, few = tiles.programs(step, value_heads * triton.cdiv(value_dim, tiles.width))
        single_kernels.fold_one[(programs,)](
            self.qk, self.v, self.out, self.pool.saved, scales_of(self.pool), *journal_of(self.pool),
            self.scratch.old, self.scratch.mix, folds_of(step), *self._cursors, self.v.stride(0), few,
            **self.shape, V=value_dim, BV=tiles.width, J=step.grid, AHEAD=self.folds_ahead,
            num_warps=tiles.warps, maxnreg=tiles.registers,
        )  # fmt: skip

    def _main(self, tiles: Tiles | None) -> None:
        (value_heads, value_dim), key_dim = self.v.shape[1:], self.shape["K"]
        tiles = tiles or DECODE_TILES[self.pool.saved.element_size()]
        single_kernels.main_one[(triton.cdiv(value_dim, tiles.values), value_heads, self.step.num_windows)](
            self.qk, self.v, self.out, self.pool.saved, scales_of(self.pool), self.pool.journal["u"],
            self.scratch.old, self.scratch.mix, *self._cursors, self.v.stride(0),
            **self.shape, KP=key_dim, V=value_dim, BV=tiles.values, KC=min(tiles.keys, key_dim), WIDE=tiles.wide,
            BEHIND=self.folds_ahead, num_warps=tiles.warps,
        )  # fmt: skip

    @property
    def _cursors(self) -> tuple[Tensor, ...]:
        step = self.step
        cursors = (step.rows, step.counts, step.offsets, step.position)
        return (*cursors, step.base, step.end_base, step.read_slot, step.write_slot)


def journal_of(pool: TemporalState) -> tuple[Tensor, Tensor, Tensor]:
    return pool.journal["k"], pool.journal["u"], pool.journal["log_g"]


def scales_of(pool: TemporalState) -> Tensor:
    return pool.saved if pool.scale is None else pool.scale
