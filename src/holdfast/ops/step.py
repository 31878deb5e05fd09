"""Where every lane of a step stands: the one bundle that all recurrent operations of the step share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Export:
    """The state of `lane` at position `line` is also written to `slot`."""

    lane: int
    slot: int
    line: int


@dataclass(frozen=True)
class Tree:
    """Windows whose tokens branch. Node i of a window sits at entry position + i; parents come before children."""

    ancestors: Tensor  # [windows, T, T] bool: node t sees node i; itself included
    depths: Tensor  # [windows, T]: nodes above it

    def sources(self, width: int) -> Tensor:
        """[windows, T, width]: the node `width - 1 - j` steps above t at j, or -1 - m for m tokens before the window."""
        nodes = self.depths.shape[1]
        steps = torch.arange(width - 1, -1, -1, device=self.depths.device)
        wanted = self.depths[:, :, None] - steps
        found = self.ancestors[:, :, None, :] & (self.depths[:, None, None, :] == wanted[..., None])
        node = (found * torch.arange(nodes, device=self.depths.device)).sum(-1)
        return torch.where(wanted >= 0, node, wanted)


@dataclass(frozen=True)
class StateStep:
    """Lanes are windows first, then runs. Tokens of lane b are offsets[b] .. offsets[b + 1] of the flat batch.

    A *window* is at most max_window tokens, perhaps uncertain: it folds at its start if the journal holds a
    whole line, and never later. A *run* is longer than any window, so its tokens are certain: it folds every
    line it passes and leaves the checkpoint at the last one.

    rows        [B]   0 is padding: such a lane reads and writes nothing
    counts      [B]   tokens of the lane
    offsets     [B+1] where they begin
    position    [B]   tokens absorbed before this step
    base        [B]   position of the checkpoint in read_slot
    read_slot   [B]   not read where base is 0: the zero state
    end_base    [B]   position of the checkpoint after this step
    write_slot  [B]   where that checkpoint goes, if end_base is not base
    """

    rows: Tensor
    counts: Tensor
    offsets: Tensor
    position: Tensor
    base: Tensor
    read_slot: Tensor
    end_base: Tensor
    write_slot: Tensor
    num_windows: int
    longest_window: int
    grid: int
    exports: tuple[Export, ...] = ()
    tree: Tree | None = None

    def lanes(self, first: int, last: int) -> StateStep:
        """The same step, seen for some lanes only. Offsets still point into the whole batch."""
        cut = slice(first, last)
        return StateStep(
            rows=self.rows[cut],
            counts=self.counts[cut],
            offsets=self.offsets[first : last + 1],
            position=self.position[cut],
            base=self.base[cut],
            read_slot=self.read_slot[cut],
            end_base=self.end_base[cut],
            write_slot=self.write_slot[cut],
            num_windows=max(0, min(last, self.num_windows) - first),
            longest_window=self.longest_window,
            grid=self.grid,
            exports=tuple(
                Export(e.lane - first, e.slot, e.line) for e in self.exports if first <= e.lane < last
            ),
            tree=self.tree,
        )


@dataclass(frozen=True)
class ConvState:
    """One causal convolution of one layer.

    saved  [slots, width - 1, channels]  the inputs just before each checkpoint's position
    ring   [rows, capacity, channels]    recent inputs, by position % capacity
    """

    saved: Tensor
    ring: Tensor


@dataclass(frozen=True)
class TemporalState:
    """The big state of one layer.

    saved    [slots, ...]           checkpoints, axes in the order that the operation declared
    journal  {name: [rows, capacity, ...]}  what each token since the checkpoint added, by position % capacity
    """

    saved: Tensor
    journal: dict[str, Tensor]
