"""A plan as device tensors, in buffers that stay where they are, so that a recorded graph can read them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import Limits, run_reaches
from ..ops.step import Export
from ..plan import Grant, RowWork, StepPlan


class Buffer:
    """A device tensor of fixed address, filled from the host. Two host copies alternate: one may still be in
    flight while the next is written."""

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype = torch.int64) -> None:
        self.device = torch.zeros(size, dtype=dtype, device=device)
        pinned = device.type == "cuda"
        self._host = [torch.zeros(size, dtype=dtype, pin_memory=pinned) for _ in range(2)]

    def fill(self, values: Sequence[int], turn: int) -> Tensor:
        """The first len(values) elements, in place."""
        host = self._host[turn % 2][: len(values)]
        host.numpy()[:] = values
        target = self.device[: len(values)]
        target.copy_(host, non_blocking=True)
        return target


@dataclass(frozen=True)
class Lanes:
    """The plan's work, windows first. `lane` and `offset` say of each token whose it is and which of them."""

    turn: int
    """Of the buffers that a step fills."""
    work: tuple[RowWork, ...]
    num_windows: int
    longest_window: int
    rows: Tensor
    counts: Tensor
    offsets: Tensor
    lane: Tensor
    offset: Tensor
    sampled: Tensor
    """Lanes whose last token is followed by a choice; `choosers` on the host."""
    choosers: tuple[int, ...]
    exports: tuple[Grant, ...]
    missed_exports: tuple[Grant, ...]

    @property
    def export_lanes(self) -> tuple[Export, ...]:
        lane_of = {w.row: i for i, w in enumerate(self.work)}
        return tuple(Export(lane_of[e.row], e.slot, e.line) for e in self.exports)


class Inputs:
    def __init__(self, limits: Limits, device: torch.device) -> None:
        self._max_window = limits.max_window
        lanes, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        self._rows, self._counts = Buffer(lanes, device), Buffer(lanes, device)
        self._offsets, self._sampled = Buffer(lanes + 1, device), Buffer(lanes, device)
        self._lane, self._offset = Buffer(tokens, device), Buffer(tokens, device)
        self.adjusted, self.scored = Buffer(lanes, device), Buffer(tokens, device)
        """For the sampler and the prompt scorer, who know which lanes and tokens they are for."""

    def fill(self, plan: StepPlan) -> Lanes:
        work = sorted(plan.work, key=lambda w: w.tokens > self._max_window)  # stable: windows first
        counts = [w.tokens for w in work]
        windows = [n for n in counts if n <= self._max_window]
        offsets = [0]
        for n in counts:
            offsets.append(offsets[-1] + n)
        sampled = [i for i, w in enumerate(work) if w.sample and w.tokens]
        exports = [e for e in plan.exports if self._passes(e, work)]
        turn = plan.step
        return Lanes(
            turn=turn,
            work=tuple(work),
            num_windows=len(windows),
            longest_window=max(windows, default=0),
            rows=self._rows.fill([w.row for w in work], turn),
            counts=self._counts.fill(counts, turn),
            offsets=self._offsets.fill(offsets, turn),
            lane=self._lane.fill([i for i, n in enumerate(counts) for _ in range(n)], turn),
            offset=self._offset.fill([t for n in counts for t in range(n)], turn),
            sampled=self._sampled.fill(sampled, turn),
            choosers=tuple(sampled),
            exports=tuple(exports),
            missed_exports=tuple(e for e in plan.exports if e not in exports),
        )

    def _passes(self, export: Grant, work: Sequence[RowWork]) -> bool:
        """Only runs export."""
        return any(
            w.row == export.row
            and w.tokens > self._max_window
            and run_reaches(export.line, w.position, w.position + w.tokens)
            for w in work
        )
