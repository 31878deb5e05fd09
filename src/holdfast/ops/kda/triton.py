"""The kernels of the delta rule gated by channel, launched: how they are cut, and which runs beside which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ...config import CHUNK
from ..gated_delta.single_kernels import main_one
from ..places import TemporalState
from ..step import StateStep
from ..twins.launch import (
    LEAST,
    Exports,
    FoldTiles,
    RunWindows,
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

ORDER = ("head", "key", "value")
RUN_WINDOW = 16
"""Tokens of a run whose dots are computed pair by pair. Those before them are in the state."""


@dataclass(frozen=True)
class Tiles:
    """How the state of a head is cut: value channels of a program, its warps, and how a window reads keys."""

    values: int
    warps: int
    keys: int = 16
    stages: int = 4


WINDOWS = Tiles(values=32, warps=1)
SINGLES = Tiles(values=32, warps=1, keys=8)
FOLDS = FoldTiles(32, 4, registers=128)
FRONT_WARPS, FRONT_WIDTH = 2, 2
"""Before the rule of single tokens: warps of a program, and channels of a thread."""
RUNS = Tiles(values=32, warps=4, stages=1)


@dataclass(frozen=True)
class Scratch:
    """What `front` leaves for `main`; of one step's size, shared by all layers."""

    probes: Tensor
    old: Tensor
    mix: Tensor

    @staticmethod
    def of(step: StateStep, heads: int, key_dim: int) -> Scratch:
        tokens, least = _tokens(step), 2  # of a single token four numbers are kept in mix

        def empty(*shape: int) -> Tensor:
            return torch.empty(step.num_windows, heads, 2 * tokens, *shape, device=step.rows.device)

        return step.once(
            ("kda scratch", heads, key_dim),
            lambda: Scratch(empty(key_dim), empty(padded(step.most_held)), empty(max(tokens, least))),
        )


def _tokens(step: StateStep) -> int:
    """Of a window; keys and queries are stacked, and together as wide as the narrowest product."""
    return 1 if step.longest_window <= 1 else padded(step.longest_window, LEAST // 2)


def advance(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_g: Tensor,
    beta: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    *,
    tiles: Tiles | None = None,
    run_tiles: Tiles = RUNS,
) -> Tensor:
    """As `ops.journal.advance` does for KDA. The pool has its axes in ORDER."""
    tell(pool, step, len(v))
    inputs = {"q": q, "k": k, "v": v, "log_g": log_g, "beta": beta}
    inputs = {name: rowwise(given) for name, given in inputs.items()}
    if step.num_windows:
        _windows(inputs, pool, step.windows.step, out, tiles)
    if step.num_windows < len(step.rows):
        runs = step.once("runs", lambda: step.lanes(step.num_windows, len(step.rows)))
        _runs(inputs, pool, runs, Exports.of(step), out, run_tiles)
    return out


def _windows(
    inputs: dict[str, Tensor], pool: TemporalState, step: StateStep, out: Tensor, tiles: Tiles | None
) -> None:
    lanes, (heads, key_dim), value_dim = len(step.rows), inputs["k"].shape[1:], inputs["v"].shape[2]
    scratch, journal = Scratch.of(step, heads, key_dim), pool.journal
    cursors = (step.rows, step.counts, step.offsets, step.position)
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    stride = {name: given.stride(0) for name, given in inputs.items()}
    shape: dict[str, Any] = {
        "H": heads, "K": key_dim, "KP": padded(key_dim), "J": step.grid, "JP": padded(step.most_held),
        "CAP": pool.capacity,
    }  # fmt: skip
    coefficients = (scratch.probes, scratch.old, scratch.mix)
    prepared = tuple(inputs[name] for name in ("q", "k", "log_g", "beta"))
    strides = tuple(stride[name] for name in ("q", "k", "log_g", "beta"))
    if step.longest_window <= 1:
        del shape["J"]
        single_kernels.front_one[(heads, lanes)](
            *prepared, journal["k"], journal["log_g"], *coefficients, *cursors, step.end_base, *strides,
            **shape, WIDTH=FRONT_WIDTH, num_warps=FRONT_WARPS,
        )  # fmt: skip
        _singles(inputs["v"], pool, step, out, scratch, tiles or SINGLES, shape)
        return
    shape |= {"STOPS": stops_at_lines(pool, step)}
    kernels.front[(heads, lanes)](
        *prepared, journal["k"], journal["log_g"], *coefficients, *cursors, step.end_base, *tree_of(step), *strides,
        **shape, TP=_tokens(step), TREE=step.tree is not None, num_warps=4,
    )  # fmt: skip
    tiles = tiles or WINDOWS
    absorbed = (
        inputs["v"], inputs["beta"], out, pool.saved, journal["k"], journal["u"], journal["log_g"], *coefficients
    )  # fmt: skip
    arguments = (*absorbed, *cursors, *slots, stride["v"], stride["beta"])
    shape |= {"V": value_dim, "TP": _tokens(step), "BV": tiles.values, "BK": tiles.keys}
    launch = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    blocks = (triton.cdiv(value_dim, tiles.values), heads, lanes)
    with beside(out.device):
        kernels.main[blocks](*arguments, **shape, **launch, FOLDS=True)
    kernels.main[blocks](*arguments, **shape, **launch, FOLDS=False)
    join(out.device)


def _singles(
    v: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    scratch: Scratch,
    tiles: Tiles,
    shape: dict[str, Any],
) -> None:
    lanes, (heads, value_dim), journal, folds = len(step.rows), v.shape[1:], pool.journal, folds_of(step)
    coefficients = (scratch.old, scratch.mix)
    cursors = (step.rows, step.counts, step.offsets, step.position)
    slots = (step.base, step.end_base, step.read_slot, step.write_slot)
    shape |= {"V": value_dim}
    programs, few = FOLDS.programs(step, heads * triton.cdiv(value_dim, FOLDS.width))
    with beside(out.device):
        single_kernels.fold_one[(programs,)](
            scratch.probes, v, out, pool.saved, journal["k"], journal["u"], journal["log_g"], *coefficients, folds,
            *cursors, *slots, v.stride(0), few,
            **shape, BV=FOLDS.width, J=step.grid, num_warps=FOLDS.warps, maxnreg=FOLDS.registers,
        )  # fmt: skip
    main_one[(triton.cdiv(value_dim, tiles.values), heads, lanes)](
        scratch.probes, v, out, pool.saved, pool.saved, journal["u"], *coefficients, *cursors, *slots, v.stride(0),
        **shape, GROUP=1, BV=tiles.values, KC=min(tiles.keys, shape["KP"]), WIDE=4, BEHIND=False,
        num_warps=tiles.warps,
    )  # fmt: skip
    join(out.device)


def _runs(
    inputs: dict[str, Tensor],
    pool: TemporalState,
    runs: StateStep,
    exports: Exports,
    out: Tensor,
    tiles: Tiles,
) -> None:
    (heads, key_dim), value_dim = inputs["k"].shape[1:], inputs["v"].shape[2]
    size = min(RUN_WINDOW, runs.grid)
    windows = RunWindows.of(runs, size, len(inputs["v"]), pool.capacity)
    mix = torch.empty(len(windows.run), heads, 2 * RUN_WINDOW, RUN_WINDOW, device=out.device)
    stride = {name: given.stride(0) for name, given in inputs.items()}
    cursors = (runs.rows, runs.counts, runs.offsets, runs.position)
    shape: dict[str, Any] = {
        "H": heads, "K": key_dim, "KP": padded(key_dim), "W": size, "TP": RUN_WINDOW, "CAP": pool.capacity
    }  # fmt: skip
    run_kernels.front_run[(heads, len(windows.run))](
        *(inputs[name] for name in ("q", "k", "log_g", "beta")), pool.journal["k"], pool.journal["log_g"], mix,
        windows.run, windows.low, *cursors, *(stride[name] for name in ("q", "k", "log_g", "beta")),
        **shape, num_warps=4,
    )  # fmt: skip
    run_kernels.main_run[(triton.cdiv(value_dim, tiles.values), heads, len(runs.rows))](
        *inputs.values(), out, pool.saved, pool.journal["k"], pool.journal["u"], pool.journal["log_g"], mix,
        windows.first, *cursors, runs.base, runs.end_base, runs.read_slot, runs.write_slot,
        exports.first, exports.line, exports.slot, *stride.values(),
        **shape, V=value_dim, BV=tiles.values, CHUNK=CHUNK, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    append_tails({name: inputs[name] for name in ("k", "log_g")}, pool, runs)
