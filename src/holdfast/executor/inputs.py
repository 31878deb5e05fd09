"""A plan as device tensors, in buffers that stay where they are, so that a recorded graph can read them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import Limits, max_window, run_reaches
from ..ids import PAD_ROW
from ..ops.acceptance.reference import Drafts
from ..ops.step import Export
from ..ops.transfer import Buffer, Column
from ..plan import Grant, RowWork, StepPlan, Window

CHOSEN = 5
"""Which of the columns of a step has the rows that chose, if all lanes are windows."""


@dataclass(frozen=True)
class Choices:
    """Where tokens are chosen: S of them. Those of a lane stand side by side: one after its last token that is known,
    and one after each draft. In a uniform step that is after every token of every lane.

    choosers  lanes that get what is chosen for them;  begins  which of the S is the first of each: on the host
    drafts    of all lanes that are chosen for
    after     [S]  the token of the flat batch that each choice follows
    """

    choosers: tuple[int, ...]
    begins: tuple[int, ...]
    drafts: Drafts
    after: Tensor


@dataclass(frozen=True)
class Shape:
    """Of a uniform step: so many lanes, each with room for so many tokens."""

    lanes: int
    window: int


class Lanes(NamedTuple):
    """The plan's work, windows first. `lane` and `offset` say of each token whose it is and which of them.

    There may be more lanes than work: those are padding, and have row 0. Lanes of a *uniform* step are windows that
    lie `longest_window` tokens apart, whatever they hold, so that steps of one shape can share a recorded graph.
    """

    turn: int
    """Of the buffers that a step fills."""
    work: tuple[RowWork, ...]
    positions: tuple[int, ...]
    uncertain: tuple[int, ...]
    """Of each work, as the plan has it."""
    num_windows: int
    longest_window: int
    window_tokens: int
    shape: Shape | None
    """Of a uniform step."""
    rows: Tensor
    counts: Tensor
    offsets: Tensor
    lane: Tensor
    offset: Tensor
    choices: Choices
    exports: tuple[Grant, ...]
    missed_exports: tuple[Grant, ...]
    report: tuple[slice, ...]
    """Where the parts lie of what it reports: four numbers of each lane, two of each that is chosen for, and what was
    chosen."""

    @property
    def uniform(self) -> bool:
        return self.shape is not None

    def end(self, lane: int) -> int:
        """Where it will stand at most, if all its tokens are kept."""
        return self.positions[lane] + self.work[lane].tokens

    @property
    def export_lanes(self) -> tuple[Export, ...]:
        lane_of = {w.row: i for i, w in enumerate(self.work)}
        return tuple(Export(lane_of[e.row], e.slot, e.line) for e in self.exports)


def uniform_shapes(limits: Limits, depths: Sequence[int]) -> tuple[Shape, ...]:
    """Few enough to be recorded in seconds; no step has many more lanes than it needs, nor longer ones: there is a
    window for each number of drafts."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 32), *range(256, 1025, 128)]
    lanes = sorted({*(size for size in sizes if size < limits.max_num_seqs), limits.max_num_seqs})
    windows = sorted({1, *map(max_window, depths)})
    return tuple(Shape(n, window) for n in lanes for window in windows)


class Inputs:
    """shapes: those that a uniform step may have; none: every step is as long as its work."""

    def __init__(self, limits: Limits, device: torch.device, shapes: Sequence[Shape] = ()) -> None:
        self._max_window = limits.max_window
        self.shapes = sorted(shapes, key=lambda shape: (shape.lanes, shape.window))
        lanes = max([limits.max_num_seqs, *(shape.lanes for shape in shapes)])
        tokens = max(limits.max_num_batched_tokens, lanes * limits.max_window)
        chosen = lanes * limits.max_window
        self._all = Buffer(3 * lanes + 1 + 2 * tokens + 4 * lanes + chosen, device)
        self.adjusted, self.scored = Buffer(chosen, device), Buffer(tokens, device)
        """For the sampler and the prompt scorer, who know which lanes and tokens they are for."""
        self.behind = Buffer(2 * lanes, device)
        """For the backlog."""
        self._before: Lanes | None = None
        """What lies in the buffer."""
        self._known: dict[Shape | None, tuple[Lanes, Column]] = {}
        """The last uniform step of each shape, and what was copied for it."""

    def fill(self, plan: StepPlan) -> Lanes:
        """If the same rows do the same as in the step before, all that they need is there already; if they did it
        lately, with other windows since, it need not be worked out again."""
        lanes = self._before
        if lanes is not None and lanes.num_windows >= len(lanes.work) and lanes.work == plan.work:
            self._before = _again(lanes, plan)
        else:
            self._before = self._fill(plan)
        return self._before

    def _fill(self, plan: StepPlan) -> Lanes:
        longest = max((w.tokens for w in plan.work), default=0)
        if longest <= self._max_window:
            shape = self._shape(len(plan.work), longest) if longest else None
            if shape in self._known and self._known[shape][0].work == plan.work:
                lanes, told = self._known[shape]
                self._all.fill(told, plan.step)
                return _again(lanes, plan)
            return self._lay_out(plan, shape, len(plan.work), longest)
        plan = self._windows_first(plan)
        windows = [w.tokens for w in plan.work if w.tokens <= self._max_window]
        return self._lay_out(
            plan, None, len(windows), max(windows, default=0), self._exports(plan, len(windows))
        )

    def _windows_first(self, plan: StepPlan) -> StepPlan:
        order = sorted(range(len(plan.work)), key=lambda lane: plan.work[lane].tokens > self._max_window)
        return replace(
            plan,
            work=tuple(plan.work[lane] for lane in order),
            positions=tuple(plan.positions[lane] for lane in order),
            uncertain=tuple(plan.uncertain[lane] for lane in order),
        )

    @staticmethod
    def _exports(plan: StepPlan, windows: int) -> tuple[Grant, ...]:
        """Those that this step fills. Only runs export."""
        runs = zip(plan.work[windows:], plan.positions[windows:], strict=True)
        spans = {work.row: (at, at + work.tokens) for work, at in runs}
        return tuple(e for e in plan.exports if e.row in spans and run_reaches(e.line, *spans[e.row]))

    def as_if_uniform(self, lanes: Lanes) -> None:
        """After a step that was not recorded, and is over with its inputs: the rows that chose are laid where a
        recorded drafter of that many lanes will look for them."""
        rows, self._before = lanes.choices.drafts.tell.clone(), None
        size = self.size(lanes)
        chosen = self._all.device[CHOSEN * size : (CHOSEN + 1) * size].zero_()
        chosen[: len(rows)] = rows

    def size(self, lanes: Lanes) -> int:
        """Lanes of a recording that has room for all that choose; 0: there is none."""
        if lanes.shape is not None:
            return lanes.shape.lanes
        choosing = len(lanes.choices.choosers)
        return next((shape.lanes for shape in self.shapes if shape.lanes >= choosing), 0)

    def padding(self, shape: Shape) -> Lanes:
        """A uniform step in which nobody takes part."""
        self._forget()
        return self._lay_out(StepPlan(0), shape, 0, 0)

    def run_of_padding(self, tokens: int) -> Lanes:
        """A step of one run, which is nobody's."""
        self._forget()
        work = RowWork(PAD_ROW, 0, tokens, Window())
        return self._lay_out(StepPlan(0, work=(work,), positions=(0,), uncertain=(0,)), None, 0, 0)

    def _forget(self) -> None:
        """What lies in the buffers. It may still be on its way there: nobody waits for steps that are nobody's."""
        self._before = None
        if self._all.device.is_cuda:
            torch.cuda.synchronize(self._all.device.device)

    def _lay_out(
        self,
        plan: StepPlan,
        shape: Shape | None,
        num_windows: int,
        longest: int,
        exports: tuple[Grant, ...] = (),
    ) -> Lanes:
        """One copy to the device, which is then cut up."""
        lanes, work = shape.lanes if shape else len(plan.work), plan.work
        rows, counts, drafts, chooses = np.zeros((4, lanes), dtype=np.int64)
        if work:
            row, _, tokens, windows = zip(*work, strict=True)
            rows[: len(work)], counts[: len(work)] = row, tokens
            drafts[: len(work)] = [window.drafts for window in windows]
            chooses[: len(work)] = [window.bonus for window in windows]
        apart = np.full(lanes, shape.window) if shape else counts
        offsets = np.concatenate(([0], apart.cumsum()))
        lane = np.arange(lanes).repeat(apart)
        choosers = (chooses * counts).nonzero()[0]
        begins, choices, after = _choices(choosers, rows, counts, drafts, offsets, uniform=shape is not None)
        # those of lanes first, CHOSEN the last of them: a recorded drafter finds them, whatever the window
        columns = (rows, counts, *choices, offsets, lane, np.arange(len(lane)) - offsets[lane], after)
        told = np.concatenate(columns)
        flat = self._all.fill(told, plan.step)
        on_device = flat.split_with_sizes([len(column) for column in columns])
        most = shape.window - 1 if shape else int(choices[1].max(initial=0))
        whose, verified, first, tell = on_device[2:6]
        chosen = Drafts(lane=whose, drafts=verified, first=first, tell=tell, most=most)
        laid = Lanes(
            turn=plan.step,
            work=work,
            positions=plan.positions,
            uncertain=plan.uncertain,
            num_windows=lanes if shape else num_windows,
            longest_window=shape.window if shape else longest,
            window_tokens=int(offsets[lanes if shape else num_windows]),
            shape=shape,
            rows=on_device[0],
            counts=on_device[1],
            offsets=on_device[6],
            lane=on_device[7],
            offset=on_device[8],
            choices=Choices(tuple(choosers.tolist()), tuple(begins.tolist()), chosen, on_device[9]),
            exports=exports,
            missed_exports=tuple(e for e in plan.exports if e not in exports),
            report=_side_by_side([lanes] * 4 + [len(choices[0])] * 2 + [len(after)]),
        )
        if shape:
            self._known[shape] = laid, told
        return laid

    def _shape(self, lanes: int, window: int) -> Shape | None:
        return next((shape for shape in self.shapes if shape.lanes >= lanes and shape.window >= window), None)


def _again(lanes: Lanes, plan: StepPlan) -> Lanes:
    """The same work, where it stands now."""
    return lanes._replace(
        turn=plan.step,
        positions=plan.positions,
        uncertain=plan.uncertain,
        missed_exports=plan.exports,  # only runs export, and there is none
    )


def _side_by_side(sizes: Sequence[int]) -> tuple[slice, ...]:
    ends = accumulate(sizes, initial=0)
    return tuple(slice(begin, end) for begin, end in pairwise(ends))


def _choices(
    choosers: Column, rows: Column, counts: Column, drafts: Column, offsets: Column, *, uniform: bool
) -> tuple[Column, tuple[Column, ...], Column]:
    """`begins`, as `Choices` has it; lane, drafts, first and tell of `Drafts`; and `after`."""
    drafts = drafts[choosers]
    known = offsets[choosers] + counts[choosers] - 1 - drafts
    if not uniform:
        owner = np.arange(len(choosers)).repeat(drafts + 1)
        begins = (drafts + 1).cumsum() - drafts - 1
        after = known[owner] + np.arange(len(owner)) - begins[owner]
        return begins, (choosers, drafts, begins, rows[choosers]), after
    first = offsets[:-1].copy()
    each, told = np.zeros((2, len(rows)), dtype=np.int64)
    first[choosers], each[choosers], told[choosers] = known, drafts, rows[choosers]
    return known, (np.arange(len(rows)), each, first, told), np.arange(offsets[-1])
