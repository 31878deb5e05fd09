"""A plan as device tensors, in buffers that stay where they are, so that a recorded graph can read them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import Limits, run_reaches
from ..ids import PAD_ROW
from ..ops.step import Export
from ..plan import Grant, RowWork, StepPlan


class Buffer:
    """A device tensor of fixed address, filled from the host. Two host copies alternate: one may still be in
    flight while the next is written."""

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype = torch.int64) -> None:
        self.device = torch.zeros(size, dtype=dtype, device=device)
        pinned = device.type == "cuda"
        self._host = [torch.zeros(size, dtype=dtype, pin_memory=pinned) for _ in range(2)]

    def fill(self, values: Sequence[int] | NDArray[np.int64], turn: int) -> Tensor:
        """The first len(values) elements, in place."""
        host = self._host[turn % 2][: len(values)]
        host.numpy()[:] = values
        target = self.device[: len(values)]
        target.copy_(host, non_blocking=True)
        return target


@dataclass(frozen=True)
class Choices:
    """Where tokens are chosen: S of them, for C lanes. Those of a lane stand side by side: one after its last token
    that is known, and one after each draft. In a uniform step that is after every token of every lane.

    choosers     lanes that get what is chosen for them;  begins  which of the S is the first of each: on the host
    most_drafts  no lane has more
    lane         [C]
    drafts       [C]  that the lane verifies
    first        [C]  which of the S is the lane's first
    tell         [C]  the row that gets the lane's tokens; 0: they are dropped
    after        [S]  the token of the flat batch that each choice follows
    """

    choosers: tuple[int, ...]
    begins: tuple[int, ...]
    most_drafts: int
    lane: Tensor
    drafts: Tensor
    first: Tensor
    tell: Tensor
    after: Tensor

    def by_lane(self, chosen: Tensor) -> Tensor:
        """[S] -> [C, most_drafts + 1]; a lane with fewer drafts repeats its last."""
        place = torch.arange(self.most_drafts + 1, device=chosen.device)
        return chosen[self.first[:, None] + place.minimum(self.drafts[:, None])]


@dataclass(frozen=True)
class Lanes:
    """The plan's work, windows first. `lane` and `offset` say of each token whose it is and which of them.

    There may be more lanes than work: those are padding, and have row 0. Lanes of a *uniform* step are windows that
    lie `longest_window` tokens apart, whatever they hold, so that steps of one shape can share a recorded graph.
    """

    turn: int
    """Of the buffers that a step fills."""
    work: tuple[RowWork, ...]
    num_windows: int
    longest_window: int
    window_tokens: int
    uniform: bool
    rows: Tensor
    counts: Tensor
    offsets: Tensor
    lane: Tensor
    offset: Tensor
    choices: Choices
    exports: tuple[Grant, ...]
    missed_exports: tuple[Grant, ...]

    @property
    def export_lanes(self) -> tuple[Export, ...]:
        lane_of = {w.row: i for i, w in enumerate(self.work)}
        return tuple(Export(lane_of[e.row], e.slot, e.line) for e in self.exports)


class Inputs:
    """buckets: so many lanes a uniform step may have; none of them: steps are as long as their work."""

    def __init__(self, limits: Limits, device: torch.device, buckets: Sequence[int] = ()) -> None:
        self._max_window = limits.max_window
        self._buckets = sorted(buckets)
        lanes = max([limits.max_num_seqs, *self._buckets])
        tokens = max(limits.max_num_batched_tokens, lanes * limits.max_window)
        self._rows, self._counts = Buffer(lanes, device), Buffer(lanes, device)
        self._offsets, self._choosers = Buffer(lanes + 1, device), Buffer(lanes, device)
        self._drafts, self._first, self._tell = (Buffer(lanes, device) for _ in range(3))
        self._lane, self._offset = Buffer(tokens, device), Buffer(tokens, device)
        self._after = Buffer(lanes * limits.max_window, device)
        self.adjusted, self.scored = Buffer(lanes * limits.max_window, device), Buffer(tokens, device)
        """For the sampler and the prompt scorer, who know which lanes and tokens they are for."""

    def fill(self, plan: StepPlan) -> Lanes:
        work = sorted(plan.work, key=lambda w: w.tokens > self._max_window)  # stable: windows first
        counts = [w.tokens for w in work]
        windows = [n for n in counts if n <= self._max_window]
        longest = max(windows, default=0)
        bucket = self._bucket(len(work)) if len(windows) == len(work) and longest else None
        lanes = bucket or len(work)
        pad = [0] * (lanes - len(work))
        exports = [e for e in plan.exports if self._passes(e, work)]
        turn = plan.step
        apart = np.array([longest] * lanes if bucket else counts, dtype=np.int64)
        offsets = np.concatenate(([0], apart.cumsum()))
        lane = np.arange(lanes).repeat(apart)
        return Lanes(
            turn=turn,
            work=tuple(work),
            num_windows=lanes if bucket else len(windows),
            longest_window=longest,
            window_tokens=int(offsets[lanes if bucket else len(windows)]),
            uniform=bucket is not None,
            rows=self._rows.fill([w.row for w in work] + pad, turn),
            counts=self._counts.fill(counts + pad, turn),
            offsets=self._offsets.fill(offsets, turn),
            lane=self._lane.fill(lane, turn),
            offset=self._offset.fill(np.arange(len(lane)) - offsets[lane], turn),
            choices=self._choices(work, offsets, lanes if bucket else None, turn),
            exports=tuple(exports),
            missed_exports=tuple(e for e in plan.exports if e not in exports),
        )

    def _choices(
        self, work: Sequence[RowWork], offsets: NDArray[np.int64], lanes: int | None, turn: int
    ) -> Choices:
        """`lanes` of a uniform step."""
        choosers = [lane for lane, w in enumerate(work) if w.sample and w.tokens]
        drafts = np.array([work[lane].window.drafts for lane in choosers], dtype=np.int64)
        known = (
            np.array([offsets[lane] + work[lane].tokens - 1 for lane in choosers], dtype=np.int64) - drafts
        )
        if lanes is None:
            owner = np.arange(len(choosers)).repeat(drafts + 1)
            begins = (drafts + 1).cumsum() - drafts - 1
            after = known[owner] + np.arange(len(owner)) - begins[owner]
            lane, first, each, tell = choosers, begins, drafts, [work[lane].row for lane in choosers]
        else:
            after, begins, lane = np.arange(offsets[-1]), known, list(range(lanes))
            first, each, tell = np.array(offsets[:-1]), np.zeros(lanes, dtype=np.int64), [PAD_ROW] * lanes
            first[choosers], each[choosers] = begins, drafts
            for chooser in choosers:
                tell[chooser] = work[chooser].row
        return Choices(
            choosers=tuple(choosers),
            begins=tuple(begins.tolist()),
            most_drafts=int(drafts.max(initial=0)) if lanes is None else int(offsets[1]) - 1,
            lane=self._choosers.fill(lane, turn),
            drafts=self._drafts.fill(each, turn),
            first=self._first.fill(first, turn),
            tell=self._tell.fill(tell, turn),
            after=self._after.fill(after, turn),
        )

    def _bucket(self, lanes: int) -> int | None:
        return next((size for size in self._buckets if size >= lanes), None)

    def _passes(self, export: Grant, work: Sequence[RowWork]) -> bool:
        """Only runs export."""
        return any(
            w.row == export.row
            and w.tokens > self._max_window
            and run_reaches(export.line, w.position, w.position + w.tokens)
            for w in work
        )
