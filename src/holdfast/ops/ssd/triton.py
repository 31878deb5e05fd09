"""State space duality's kernels, launched: how they are cut, and which runs beside which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ...config import CHUNK
from ..places import TemporalState
from ..step import StateStep
from ..twins.launch import (
    Exports,
    FoldTiles,
    append_tails,
    beside,
    folds_of,
    join,
    padded,
    rowwise,
    stops_at_lines,
    tell,
    tree_of,
)
from . import kernels, run_kernels, single_kernels

ORDER = ("head", "state", "channel")


@dataclass(frozen=True)
class Tiles:
    """How the state of a head is cut: channels of a program, its warps, and how a window reads states."""

    channels: int
    warps: int
    states: int = 16
    stages: int = 4


USUAL_STATES = 128
"""Tiles are chosen for so many states of a head; programs with more have as many more warps."""
WINDOWS = Tiles(channels=32, warps=1)
SINGLES = Tiles(channels=32, warps=1, states=4)
FOLDS = FoldTiles(32, 4, registers=128)
HEADS = 16
"""Of a group, that a program takes before the rule."""
RUN_BYTES, RUN_WARPS = 128, 4
"""Runs multiply with the instructions of whole warp groups, which have been seen to read rows of 64 bytes wrongly, or
to reach beyond their memory (Triton 3.6 on an H200: 32 channels in bfloat16), and rows of 128 bytes rightly."""


@dataclass(frozen=True)
class Scratch:
    """What `front` leaves for `main`; of one step's size, shared by all layers."""

    seen: Tensor
    gain: Tensor
    mid: Tensor
    mid_gain: Tensor

    @staticmethod
    def of(step: StateStep, heads: int) -> Scratch:
        tokens, places = _places(step)

        def allocate() -> Scratch:
            def empty(*shape: int) -> Tensor:
                return torch.empty(step.num_windows, heads, *shape, device=step.rows.device)

            return Scratch(empty(tokens, places), empty(tokens), empty(padded(step.grid)), empty())

        return step.once(("ssd scratch", heads), allocate)


def _places(step: StateStep) -> tuple[int, int]:
    """Tokens of a window and its entries since the checkpoint, both as matrix units want them."""
    if step.longest_window <= 1:
        return 1, padded(step.most_held)
    return padded(step.longest_window), padded(step.grid - 1 + step.longest_window)


def _deeper(states: int) -> int:
    return max(1, padded(states) // USUAL_STATES)


def advance(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    dt: Tensor,
    log_decay: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    *,
    tiles: Tiles | None = None,
    run_tiles: Tiles | None = None,
) -> Tensor:
    """As `ops.journal.advance` does for SSD. The pool has its axes in ORDER."""
    tell(pool, step, len(x))
    inputs = {"x": x, "b": b, "c": c, "dt": dt, "log_decay": log_decay}
    inputs = {name: rowwise(given) for name, given in inputs.items()}
    if step.num_windows:
        _windows(inputs, pool, step.windows.step, out, tiles)
    if step.num_windows < len(step.rows):
        runs = step.once("runs", lambda: step.lanes(step.num_windows, len(step.rows)))
        run_tiles = run_tiles or Tiles(RUN_BYTES // x.element_size(), RUN_WARPS, stages=1)
        if x.is_cuda and run_tiles.warps >= 4 and run_tiles.channels * x.element_size() < RUN_BYTES:
            raise ValueError(f"{run_tiles} cuts rows of less than {RUN_BYTES} bytes for warp groups")
        _runs(inputs, pool, runs, Exports.of(step), out, run_tiles)
    return out


def _windows(
    inputs: dict[str, Tensor], pool: TemporalState, step: StateStep, out: Tensor, tiles: Tiles | None
) -> None:
    lanes, (heads, width), (groups, states) = len(step.rows), inputs["x"].shape[1:], inputs["b"].shape[1:]
    tokens, places = _places(step)
    scratch, group = Scratch.of(step, heads), heads // groups
    journal = tuple(pool.journal[name] for name in ("x", "b", "dt", "log_decay"))
    cursors = (step.rows, step.counts, step.offsets, step.position)
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    strides = tuple(given.stride(0) for given in inputs.values())
    shape: dict[str, Any] = {
        "G": groups, "GROUP": group, "P": width, "S": states, "SP": padded(states), "LP": places,
        "CAP": pool.capacity,
    }  # fmt: skip
    tiles = tiles or (SINGLES if step.longest_window <= 1 else WINDOWS)
    blocks = (triton.cdiv(width, tiles.channels), heads, lanes)
    absorbed: tuple[Any, ...] = (inputs["c"], out, pool.saved, *journal)
    line = {"J": step.grid, "JP": padded(step.grid)}
    deeper = _deeper(states)
    if step.longest_window <= 1:
        folds, together = folds_of(step), min(HEADS, triton.next_power_of_2(group))
        single_kernels.front_one[(groups * triton.cdiv(group, together), lanes)](
            *inputs.values(), *journal, scratch.seen, scratch.gain, *cursors, step.end_base, *strides,
            **shape, HB=together, PP=padded(width), num_warps=1,
        )  # fmt: skip
        programs, few = FOLDS.programs(step, heads * triton.cdiv(width, FOLDS.width))
        with beside(out.device):
            single_kernels.fold_one[(programs,)](
                *absorbed, scratch.seen, scratch.gain, folds, *cursors, *slots, inputs["c"].stride(0), few,
                **shape, **line, BP=FOLDS.width, num_warps=FOLDS.warps * deeper, maxnreg=FOLDS.registers,
            )  # fmt: skip
        single_kernels.main_one[blocks](
            inputs["c"], out, pool.saved, journal[0], scratch.seen, scratch.gain, *cursors, *slots[:3],
            inputs["c"].stride(0), **shape, BP=tiles.channels, SC=min(tiles.states, shape["SP"]),
            num_warps=tiles.warps * deeper,
        )  # fmt: skip
        join(out.device)
    else:
        few = math.gcd(group, 4)
        coefficients = (scratch.seen, scratch.gain, scratch.mid, scratch.mid_gain)
        shape |= {**line, "TP": tokens, "STOPS": stops_at_lines(pool, step)}
        kernels.front[(heads // few, lanes)](
            *inputs.values(), *journal, *coefficients, *cursors, step.end_base, *tree_of(step), *strides,
            **shape, TREE=step.tree is not None, HB=few, PP=padded(width), num_warps=4,
        )  # fmt: skip
        arguments = (*absorbed, *coefficients, *cursors, *slots, inputs["c"].stride(0))
        shape |= {"BP": tiles.channels, "BS": tiles.states}
        launch = {"num_warps": tiles.warps, "num_stages": tiles.stages}
        with beside(out.device):
            kernels.main[blocks](*arguments, **shape, **launch, FOLDS=True)
        kernels.main[blocks](*arguments, **shape, **launch, FOLDS=False)
        join(out.device)


def _runs(
    inputs: dict[str, Tensor],
    pool: TemporalState,
    runs: StateStep,
    exports: Exports,
    out: Tensor,
    tiles: Tiles,
) -> None:
    (heads, width), (groups, states) = inputs["x"].shape[1:], inputs["b"].shape[1:]
    entries = ("x", "b", "dt", "log_decay")
    wide = (
        inputs["x"].element_size() > 2 and states > USUAL_STATES
    )  # whole blocks would not fit a multiprocessor
    run_kernels.chunk[(triton.cdiv(width, tiles.channels), heads, len(runs.rows))](
        *inputs.values(), out, pool.saved, *(pool.journal[name] for name in entries),
        runs.rows, runs.counts, runs.offsets, runs.position,
        runs.base, runs.end_base, runs.read_slot, runs.write_slot,
        exports.first, exports.line, exports.slot,
        *(given.stride(0) for given in inputs.values()),
        G=groups, GROUP=heads // groups, S=states, SP=padded(states), P=width, BP=tiles.channels,
        BT=CHUNK // 2 if wide else CHUNK, CHUNK=CHUNK, CAP=pool.capacity,
        num_warps=tiles.warps * _deeper(states), num_stages=tiles.stages,
    )  # fmt: skip
    append_tails({name: inputs[name] for name in entries}, pool, runs)
