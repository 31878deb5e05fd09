"""The selective scan's kernels, launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ...config import CHUNK
from ..places import TemporalState
from ..step import StateStep
from ..twins.launch import Exports, RunWindows, append_tails, rowwise, tell
from . import kernels

ORDER = ("channel", "state")


@dataclass(frozen=True)
class Tiles:
    """Channels of a program, and its warps."""

    channels: int = 32
    warps: int = 1


DEFAULT_TILES = Tiles()


def advance(
    x: Tensor,
    b: Tensor,
    c: Tensor,
    dt: Tensor,
    a: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    *,
    tiles: Tiles = DEFAULT_TILES,
) -> Tensor:
    """As `ops.journal.advance` does for SelectiveScan; windows are chains. The pool has its axes in ORDER."""
    tell(pool, step, len(x))
    inputs = {name: rowwise(given) for name, given in {"x": x, "b": b, "c": c, "dt": dt}.items()}
    shape: dict[str, Any] = {
        "D": a.shape[0],
        "BD": tiles.channels,
        "S": a.shape[1],
        "SP": triton.next_power_of_2(a.shape[1]),
    }
    if step.num_windows:
        lanes = step.windows.step
        kernels.windows[(triton.cdiv(a.shape[0], tiles.channels), len(lanes.rows))](
            *inputs.values(), a, out, pool.saved, *(pool.journal[name] for name in ("x", "b", "dt")),
            lanes.rows, lanes.counts, lanes.offsets, lanes.position,
            lanes.base, lanes.end_base, lanes.read_slot, lanes.write_slot,
            *(given.stride(0) for given in inputs.values()),
            **shape, J=step.grid, CAP=pool.capacity, num_warps=tiles.warps,
        )  # fmt: skip
    if step.num_windows < len(step.rows):
        runs = step.once("runs", lambda: step.lanes(step.num_windows, len(step.rows)))
        _runs(inputs, a, pool, runs, Exports.of(step), out, shape, tiles.warps)
    return out


def _runs(
    inputs: dict[str, Tensor],
    a: Tensor,
    pool: TemporalState,
    runs: StateStep,
    exports: Exports,
    out: Tensor,
    shape: dict[str, Any],
    warps: int,
) -> None:
    windows = RunWindows.of(runs, CHUNK, len(inputs["x"]), pool.capacity)
    states = torch.empty(len(windows.run), *a.shape, device=out.device)
    time = torch.empty(len(windows.run), len(a), device=out.device)
    entries = ("x", "b", "dt")
    journal = tuple(pool.journal[name] for name in entries)
    cursors = (runs.rows, runs.counts, runs.offsets, runs.position)
    stride = {name: given.stride(0) for name, given in inputs.items()}
    blocks = triton.cdiv(len(a), shape["BD"])
    cut = {**shape, "CHUNK": CHUNK, "num_warps": warps}
    kernels.local[(blocks, len(windows.run))](
        *(inputs[name] for name in entries), a, *journal, states, time, windows.run, windows.low, *cursors,
        *(stride[name] for name in entries), **cut, CAP=pool.capacity,
    )  # fmt: skip
    kernels.carry[(blocks, len(runs.rows))](
        a, pool.saved, states, time, windows.first, runs.rows, runs.counts, runs.position, runs.base,
        runs.read_slot, **cut,
    )  # fmt: skip
    kernels.scan[(blocks, len(windows.run))](
        *inputs.values(), a, out, pool.saved, *journal, states, windows.run, windows.low, *cursors,
        runs.end_base, runs.write_slot, exports.first, exports.line, exports.slot, *stride.values(),
        **cut, CAP=pool.capacity,
    )  # fmt: skip
    append_tails({name: inputs[name] for name in entries}, pool, runs)
