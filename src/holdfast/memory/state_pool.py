"""Recurrent state as checkpoint + journal: the bytes, and the cursors that say what they mean.

    state(position) = fold(checkpoint at base, entries base .. position - 1)        position = base + length

Checkpoints are addressed by slot, journals and rings by row. Layers read and write through the StateStep that
`begin` makes and `commit` ends; only `start`, `grant` and `commit` move a cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..config import Limits
from ..ops.backend import REFERENCE, Ops
from ..ops.cursors.reference import Committed, Cursors, Standing
from ..ops.places import ConvState, TemporalState, ToKeep, Transfer
from ..ops.step import Export, StateStep, Tree
from ..ops.transfer import Buffer, columns, to_device
from ..plan import Grant, RowStart
from .spec import ConvSpec, StateSpec

NEVER = 1 << 62
"""A grid with no line that a row could reach: nothing folds."""


@dataclass(frozen=True)
class LayerState:
    conv: dict[str, ConvState] = field(default_factory=dict)
    temporal: TemporalState | None = None

    def saved(self) -> dict[str, Tensor]:
        """Every tensor indexed by slot, by name."""
        held = {f"conv.{name}": conv.saved for name, conv in self.conv.items()}
        if self.temporal is None:
            return held
        scale = {} if self.temporal.scale is None else {"temporal.scale": self.temporal.scale}
        return {**held, "temporal": self.temporal.saved, **scale}

    def capacities(self) -> dict[str, int]:
        """Places in a row's ring, of every state by name."""
        held = {f"conv.{name}": conv.ring.shape[1] for name, conv in self.conv.items()}
        return held if self.temporal is None else {**held, "temporal": self.temporal.capacity}

    def rings(self) -> dict[str, Tensor]:
        """Every tensor indexed by row and position, by name."""
        held = {f"conv.{name}": conv.ring for name, conv in self.conv.items()}
        return held if self.temporal is None else {**held, **self.temporal.journal}


class StatePool:
    def __init__(
        self, specs: Mapping[str, StateSpec], limits: Limits, device: torch.device, ops: Ops = REFERENCE
    ) -> None:
        self.ops = ops
        self.grid = limits.fold_every
        rows = limits.max_num_seqs + 1
        width = rows + rows % 2  # every cursor begins at a multiple of 16 bytes, as kernels expect
        self._cursors = torch.zeros(6, 2, width, dtype=torch.int64, device=device)
        self.cursors, self.trailing = (Cursors(*self._cursors[:, which, :rows]) for which in range(2))
        """Of all layers but those that are behind; and of those: `trail` says since when."""
        self._grants = self._cursors[4:].view(4, width)
        """Slots, and then lines, of both."""
        self._told = Buffer(5 * rows, device)
        self.layers = {name: _allocate(spec, limits, device) for name, spec in specs.items()}

    # --- between steps: what the plan says ---

    def start(self, starts: tuple[RowStart, ...]) -> None:
        if not starts:
            return
        at, device = self.cursors, self.cursors.base.device
        told = [[start.row, start.own_slot, start.read_slot, start.base] for start in starts]
        rows, own, read, base = to_device(told, device).unbind(1)
        at.own_slot[rows], at.read_slot[rows], at.base[rows] = own, read, base
        for other in (at.length, at.grant_slot, at.grant_line):
            other.index_fill_(0, rows, 0)

    def grant(self, grants: tuple[Grant, ...], turn: int) -> None:
        """turn: of the step that they are for"""
        if not grants:
            return
        rows, slots, lines = columns([(grant.row, grant.slot, grant.line) for grant in grants])
        told = self._told.fill(np.concatenate((rows, slots, slots, lines, lines)), turn).view(5, -1)
        self._grants.index_copy_(1, told[0], told[1:])

    def trail(self) -> None:
        """From now on some layers stay behind; they will absorb what they missed by the cursors of this moment."""
        self._cursors[:, 1] = self._cursors[:, 0]

    # --- one step ---

    def begin(
        self,
        *,
        rows: Tensor,
        counts: Tensor,
        offsets: Tensor,
        num_windows: int,
        longest_window: int,
        exports: tuple[Export, ...] = (),
        tree: Tree | None = None,
        window_tokens: int | None = None,
        uniform: bool = False,
        cursors: Cursors | None = None,
    ) -> StateStep:
        """Where each lane stands and which fold it will make; lanes before `num_windows` are windows."""
        at = cursors or self.cursors
        stood = self.ops.begin(at, rows, counts, num_windows=num_windows, grid=self.grid)
        return StateStep(
            rows=rows,
            counts=counts,
            offsets=offsets,
            position=stood.position,
            base=stood.base,
            read_slot=stood.read_slot,
            end_base=stood.end_base,
            write_slot=stood.write_slot,
            num_windows=num_windows,
            longest_window=longest_window,
            grid=self.grid,
            exports=exports,
            tree=tree,
            window_tokens=window_tokens,
            uniform=uniform,
        )

    def look_ahead(
        self, *, rows: Tensor, tokens: int = 1, tree: Tree | None = None, uniform: bool = False
    ) -> StateStep:
        """So many tokens for each row, from where it stands. They are uncertain: their entries are appended, but
        nothing is folded and no cursor moves, so the step that absorbs what stands there overwrites them."""
        lanes, counts = len(rows), torch.full_like(rows, tokens)
        stood = self.ops.begin(self.cursors, rows, counts, num_windows=lanes, grid=NEVER)
        row, position = rows, stood.position
        if tokens > 1:
            place = torch.arange(tokens, device=rows.device)
            row, position = rows[:, None].repeat(1, tokens).flatten(), (position[:, None] + place).flatten()
        return StateStep(
            rows=rows,
            counts=counts,
            offsets=torch.arange(0, (lanes + 1) * tokens, tokens, device=rows.device),
            position=stood.position,
            base=stood.base,
            read_slot=stood.read_slot,
            end_base=stood.base,
            write_slot=stood.write_slot,
            num_windows=lanes,
            longest_window=tokens,
            window_tokens=lanes * tokens,
            grid=self.grid,
            ahead=tokens,
            tree=tree,
            uniform=uniform,
            token_places=(row, position),
        )

    def look_back(self, *, rows: Tensor, counts: Tensor, longest: int) -> StateStep:
        """Once more at the last `counts` tokens of each row. No cursor moves, and nothing that is recurrent may
        absorb them again."""
        lanes = len(rows)
        stood = self.ops.begin(self.cursors, rows, counts, num_windows=lanes, grid=NEVER)
        stood = replace(stood, position=stood.position - counts)
        return self._laid_out(rows, counts, stood, longest, windows=lanes)

    def begin_behind(self, *, rows: Tensor, missed: Tensor, longest: int) -> StateStep:
        """A run of each row by the cursors that trail: up to the line of its grant, if that is before the end of the
        `missed` tokens; else all of them, and then it stands as after so many windows of one token, which leave a
        line that they end on to the next."""
        at = self.trailing
        ahead = at.grant_line[rows] - at.base[rows] - at.length[rows]
        granted = (at.grant_slot[rows] > 0) & (ahead < missed)
        counts = torch.where(granted, ahead.clamp(min=0), missed)
        stood = self.ops.begin(at, rows, counts - (~granted).long(), num_windows=0, grid=self.grid)
        return self._laid_out(rows, counts, stood, longest, windows=0)

    def _laid_out(
        self, rows: Tensor, counts: Tensor, stood: Standing, longest: int, *, windows: int
    ) -> StateStep:
        """Lanes that lie `longest` tokens apart, whatever they hold: all of them windows, or none."""
        lanes, place = len(rows), torch.arange(longest, device=rows.device)
        exists = place < counts[:, None]
        where = (rows[:, None] * exists, (stood.position[:, None] + place) * exists)
        return StateStep(
            rows=rows,
            counts=counts,
            offsets=torch.arange(0, (lanes + 1) * longest, longest, device=rows.device),
            position=stood.position,
            base=stood.base,
            read_slot=stood.read_slot,
            end_base=stood.end_base,
            write_slot=stood.write_slot,
            num_windows=windows,
            longest_window=longest if windows else 0,
            window_tokens=windows * longest,
            grid=self.grid,
            token_places=(where[0].flatten(), where[1].flatten()),
        )

    def compact(self, *, step: StateStep, path: Tensor, accepted: Tensor) -> None:
        """Tree windows: the entries of the accepted nodes move to the positions they now hold.

        path  [windows, T]: accepted nodes from the root down; those from `accepted` on are ignored
        """
        moves = moves_along(step, path, accepted)
        by_capacity = {
            size: moves.in_rings(size) for held in self.layers.values() for size in held.capacities().values()
        }
        for layer in self.layers.values():
            for conv in layer.conv.values():
                conv.move(by_capacity[conv.ring.shape[1]])
            if layer.temporal is not None:
                layer.temporal.move(by_capacity[layer.temporal.capacity])

    def commit(
        self, *, step: StateStep, accepted: Tensor, cursors: Cursors | None = None, keep: ToKeep | None = None
    ) -> Committed:
        """Move every cursor of the step, once: `accepted` [B] of each lane's tokens are certain now."""
        cursors = cursors or self.cursors
        stood = Standing(step.position, step.base, step.read_slot, step.end_base, step.write_slot)
        if keep is None:
            return self.ops.commit(cursors, step.rows, stood, accepted)
        return self.ops.commit_keeping(cursors, stood, accepted, keep, step)

    @property
    def slot_bytes(self) -> int:
        return sum(t.nbytes for layer in self.layers.values() for t in layer.saved().values())

    @property
    def row_bytes(self) -> int:
        return sum(t.nbytes for layer in self.layers.values() for t in layer.rings().values())


@dataclass(frozen=True)
class Moves:
    """Entries of `rows` to be moved from position `source` to position `target`, all read before any write."""

    rows: Tensor
    source: Tensor
    target: Tensor

    def in_rings(self, capacity: int) -> Transfer:
        taken, put = (self.rows * capacity + place % capacity for place in (self.source, self.target))
        return Transfer(self.rows, self.source, self.target, taken, put)


def moves_along(step: StateStep, path: Tensor, accepted: Tensor) -> Moves:
    lanes = slice(0, step.num_windows)
    place = torch.arange(path.shape[1], device=path.device).expand_as(path)
    kept = (place < accepted[lanes, None]) & (step.rows[lanes, None] > 0) & (path != place)
    lane, place = kept.nonzero(as_tuple=True)
    start = step.position[lanes][lane]
    return Moves(rows=step.rows[lanes][lane], source=start + path[lane, place], target=start + place)


def _allocate(spec: StateSpec, limits: Limits, device: torch.device) -> LayerState:
    slots, rows = limits.num_slots + 1, limits.max_num_seqs + 1

    def conv(c: ConvSpec) -> ConvState:
        return ConvState(
            saved=torch.zeros(slots, c.width - 1, c.channels, dtype=c.dtype, device=device),
            ring=torch.zeros(rows, c.places(limits.max_window), c.channels, dtype=c.dtype, device=device),
        )

    temporal = None
    if spec.temporal is not None:
        scale = spec.temporal.scale
        temporal = TemporalState(
            saved=torch.zeros(slots, *spec.temporal.shape, dtype=spec.temporal.dtype, device=device),
            scale=None
            if scale is None
            else torch.zeros(slots, *scale.shape, dtype=scale.dtype, device=device),
            journal={
                name: torch.zeros(rows, limits.journal_capacity, *e.shape, dtype=e.dtype, device=device)
                for name, e in spec.entry.items()
            },
        )
    return LayerState(conv={name: conv(c) for name, c in spec.conv.items()}, temporal=temporal)
