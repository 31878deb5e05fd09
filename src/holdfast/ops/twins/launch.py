"""Launching: side streams, what is known of runs without waiting for the device, and what the watch is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from ...config import CHUNK
from .. import journal
from ..journal import Entries, Inputs
from ..places import States, TemporalState
from ..step import StateStep
from ..transfer import to_device
from . import kernels

LEAST = 16
"""No matrix product is narrower."""


def padded(size: int, least: int = LEAST) -> int:
    return max(least, triton.next_power_of_2(size))


def rowwise(x: Tensor) -> Tensor:
    """With each token's numbers side by side; tokens may lie apart."""
    inner = x[:1]
    return x if inner.is_contiguous() else x.contiguous()


# --- streams -----------------------------------------------------------------------------------------------

_sides: dict[torch.device, torch.cuda.Stream] = {}


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Launches here may run at the same time as those that follow, until `join`; their programs come first, or else
    they would wait until all of the others have begun."""
    if device.type != "cuda":
        yield
        return
    side = _sides.setdefault(device, torch.cuda.Stream(device, priority=-1))
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield


def join(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_sides[device])


def early(device: torch.device) -> dict[str, bool]:
    """How to launch a kernel before the one in front of it has ended, if the device can; it waits where it must."""
    return {"EARLY": True, "launch_pdl": True} if launches_early(device) else {"EARLY": False}


@cache
def launches_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


# --- windows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoldTiles:
    """How folds of single tokens are cut: channels of a program, its warps; programs for every multiprocessor."""

    width: int
    warps: int
    share: int = 1
    registers: int | None = None

    def programs(self, step: StateStep, pieces: int) -> tuple[int, int]:
        """pieces: of a lane. How many are launched, and how many of them are to work if few lanes fold."""
        most = step.num_windows * pieces
        if step.grid == 1:  # all fold, and nothing runs beside them
            return most, most
        there = multiprocessors(step.rows.device)
        return min(most, max(MANY_FOLDS, self.share) * there), min(most, self.share * there)


MANY_FOLDS = 4
"""Programs for every multiprocessor if all lanes fold at once."""


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def folds_of(step: StateStep) -> Tensor:
    """[1 + windows]: how many of them fold, and which."""

    def listed() -> Tensor:
        folds = torch.empty(1 + step.num_windows, dtype=torch.int32, device=step.rows.device)
        kernels.list_folds[(1,)](
            step.rows, step.base, step.end_base, folds, step.num_windows,
            LP=triton.next_power_of_2(step.num_windows), num_warps=4,
        )  # fmt: skip
        return folds

    return step.once("folds", listed)


def stops_at_lines(pool: TemporalState, step: StateStep) -> bool:
    """Whether tokens beyond a line must see what is rounded there. In float32 nothing is: an entry stays one until it
    is folded for good. A window that branches passes none: which of its nodes will be kept is not known."""
    return step.tree is None and pool.saved.dtype != torch.float32


def tree_of(step: StateStep) -> tuple[Tensor, int]:
    """For kernels with TREE: who sees whom in each window, [windows, T, T] of bytes, and T; if they branch."""
    if step.tree is None:
        return step.rows, 0
    ancestors = step.tree.ancestors
    return step.once("bytes of a tree", lambda: ancestors.contiguous().view(torch.uint8)), ancestors.shape[-1]


# --- runs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exports:
    """Of each run, those from first[i] to first[i + 1], by line; behind all, one whose line is never reached."""

    first: Tensor
    line: Tensor
    slot: Tensor

    @staticmethod
    def of(step: StateStep) -> Exports:
        return step.once("exports on the device", lambda: _exports(step))


def _exports(step: StateStep) -> Exports:
    runs = range(step.num_windows, len(step.rows) + 1)
    if not step.exports:  # nothing comes from the host: it may be recorded
        none = step.rows.new_zeros(len(runs))
        return Exports(none, none, none)
    wanted = sorted((export.lane, export.line, export.slot) for export in step.exports)
    first = [sum(lane < run for lane, _, _ in wanted) for run in runs]
    never = 1 << 62
    columns = (first, [line for _, line, _ in wanted] + [never], [slot for _, _, slot in wanted] + [0])
    return Exports(*(to_device(column, step.rows.device) for column in columns))


@dataclass(frozen=True)
class RunWindows:
    """All windows of at most `size` tokens, ending on multiples of it, from the runs' checkpoints on.

    run, low  [windows]: where each begins. There may be more than needed: those begin past the end of a run.
    first     [runs]: its first window
    """

    run: Tensor
    low: Tensor
    first: Tensor

    @staticmethod
    def of(runs: StateStep, size: int, tokens: int, capacity: int) -> RunWindows:
        """tokens, capacity: no more than these are absorbed, and held by each run"""
        most = (tokens + len(runs.rows) * capacity) // size + 2 * len(runs.rows)
        return runs.once(("windows of runs", size), lambda: _run_windows(runs, size, most))


def _run_windows(runs: StateStep, size: int, most: int) -> RunWindows:
    end = runs.position + runs.counts
    number = torch.where(runs.rows > 0, (end + size - 1) // size - runs.base // size, 0)
    after = number.cumsum(0)
    window = torch.arange(most, device=after.device)
    run = torch.searchsorted(after, window, right=True).clamp(max=len(after) - 1)
    nth = window - (after - number)[run]
    return RunWindows(
        run, torch.maximum(runs.base[run], (runs.base[run] // size + nth) * size), after - number
    )


def append_tails(given: Mapping[str, Tensor], pool: TemporalState, runs: StateStep) -> None:
    """Of entries that are given, those of each run's tokens since its last line."""
    for name, value in given.items():
        ring = pool.journal[name]
        width = ring[0, 0].numel()
        block = min(1024, triton.next_power_of_2(width))
        kernels.append_tail[(triton.cdiv(width, block), runs.grid, len(runs.rows))](
            ring, value, runs.rows, runs.counts, runs.offsets, runs.position, runs.end_base,
            value.stride(0), WIDTH=width, BLOCK=block, CAP=pool.capacity, num_warps=4,
        )  # fmt: skip


# --- the watch ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Nothing:
    """The recurrence whose state has no elements."""

    axes: tuple[int, ...] = (0, 1)

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        return inputs["none"], dict(inputs)

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        return state

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return inputs["none"], state.expand(len(inputs["none"]) // CHUNK, *state.shape)


def tell(pool: TemporalState, step: StateStep, tokens: int) -> None:
    """Tell the watch, if there is one, what the reference would: it runs, over a state that has no elements."""
    if pool.watch is None:
        return
    if step.uniform:
        pool.watch.used(step.whole())
        return
    rows, device = len(next(iter(pool.journal.values()))), pool.saved.device
    ghost = TemporalState(
        saved=torch.empty(len(pool.saved), 0, device=device),
        journal={"none": torch.empty(rows, pool.capacity, 0, device=device)},
        watch=pool.watch,
    )
    none = torch.empty(tokens, 0, device=device)
    journal.advance(_Nothing(), {"none": none}, ghost, step, none, exact=False)
