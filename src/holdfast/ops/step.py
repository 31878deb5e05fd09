"""Where every lane of a step stands: the one bundle that all recurrent operations of the step share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from .places import Checkpoints, WholeStep
from .transfer import to_device

T = TypeVar("T")


@dataclass(frozen=True)
class Export:
    """The state of `lane` at position `line` is also written to `slot`."""

    lane: int
    slot: int
    line: int


@dataclass(frozen=True)
class Tree:
    """Windows whose tokens branch. Node i sits at position + i of its lane; parents come before children."""

    ancestors: Tensor  # [windows, T, T] bool: node t sees node i; itself included
    depths: Tensor  # [windows, T]: nodes above it
    straight: bool = False
    """Node i has i nodes above it, whatever it sees: no two stand at the same position of a text."""

    @staticmethod
    def of(parents: Tensor) -> Tree:
        """[windows, T]: the node that each follows, one of those before it. The first follows none of them."""
        windows, nodes = parents.shape
        own = torch.eye(nodes, dtype=torch.bool, device=parents.device).expand(windows, nodes, nodes)
        seen = [own[:, 0]]
        for node in range(1, nodes):
            above = parents[:, node, None, None].expand(windows, 1, nodes)
            seen.append(torch.stack(seen, 1).gather(1, above)[:, 0] | own[:, node])
        ancestors = torch.stack(seen, 1)
        return Tree(ancestors, ancestors.sum(-1) - 1)

    def sources(self, width: int) -> Tensor:
        """[windows, T, width]: at j the node `width - 1 - j` above t; -1 - m: m tokens before the window."""
        nodes = self.depths.shape[1]
        steps = torch.arange(width - 1, -1, -1, device=self.depths.device)
        wanted = self.depths[:, :, None] - steps
        found = self.ancestors[:, :, None, :] & (self.depths[:, None, None, :] == wanted[..., None])
        node = (found * torch.arange(nodes, device=self.depths.device)).sum(-1)
        return torch.where(wanted >= 0, node, wanted)


@dataclass(frozen=True)
class StateStep:
    """Lanes are windows first, then runs. Lane b has tokens offsets[b] .. offsets[b + 1] of the flat batch.

    A *window* is at most max_window tokens, perhaps uncertain: it folds at its start if the journal holds a
    whole line, and never later. A *run* may be longer, and its tokens are certain: it folds every line that it
    passes and leaves the checkpoint at the last one.

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
    window_tokens: int | None = None
    """Of the flat batch, those that belong to windows; None: to be asked of the device."""
    ahead: int = 0
    """Tokens beyond the cursor, of a step that only looks there: nothing folds then, so journals are longer."""
    uniform: bool = False
    """Padding is among the lanes, and nothing about the step may be asked of the device: it may be recorded."""
    token_places: tuple[Tensor, Tensor] | None = None
    """Of each token of the flat batch: its row, 0 if there is none, and its position; None: to be computed."""
    _made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def most_held(self) -> int:
        """No window finds more entries in its journal, once it has folded."""
        return self.grid - 1 if not self.ahead else 2 * self.grid + self.ahead

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Index arithmetic that every layer needs, done for the first."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def further(self, by: int) -> StateStep:
        """Of a step that looks at one token ahead of each lane: the same, so many positions on."""
        if not by:
            return self
        position = self.position + by
        places = (self.rows, position)
        return replace(self, position=position, ahead=self.ahead + by, token_places=places, _made={})

    @property
    def read_from(self) -> Checkpoints:
        """The checkpoint that each lane begins with."""
        return self.once("read from", lambda: Checkpoints(self.rows, self.read_slot, self.base))

    @property
    def fold_to(self) -> Checkpoints:
        """Where each lane leaves the last line that it folds."""
        return self.once("fold to", lambda: Checkpoints(self.rows, self.write_slot, self.end_base))

    @property
    def export_to(self) -> tuple[Checkpoints, ...]:
        """Of a step with one lane: where it leaves the further lines that are asked for."""
        return self.once("export to", lambda: tuple(map(self._export_to, self.exports)))

    def _export_to(self, export: Export) -> Checkpoints:
        return Checkpoints(
            self.rows, torch.full_like(self.rows, export.slot), torch.full_like(self.rows, export.line)
        )

    def whole(self, pages: Tensor | None = None) -> WholeStep:
        """What a layer tells of its use of a uniform step."""
        return self.once(("whole", id(self), id(pages)), lambda: WholeStep(self, pages))

    @property
    def num_window_tokens(self) -> int:
        return int(self.offsets[self.num_windows]) if self.window_tokens is None else self.window_tokens

    def lane_of(self, tokens: int) -> Tensor:
        """[tokens]: whose each token of the flat batch is."""

        def find() -> Tensor:
            token = torch.arange(tokens, device=self.offsets.device)
            return torch.searchsorted(self.offsets[1:], token, right=True).clamp_(max=len(self.rows) - 1)

        return self.once("lane of", find)

    def places_of(self, tokens: int) -> tuple[Tensor, Tensor]:
        """[tokens] each: the row of every token of the flat batch, 0 if there is none there; and its position."""

        def find() -> tuple[Tensor, Tensor]:
            lane = self.lane_of(tokens)
            offset = torch.arange(tokens, device=self.offsets.device) - self.offsets[lane]
            return self.rows[lane] * (offset < self.counts[lane]), self.position[lane] + offset

        return self.token_places or self.once("places of", find)

    def positions_of(self, tokens: int) -> Tensor:
        """[tokens]: where each stands in its text; nodes of a tree are stored elsewhere."""
        place = self.places_of(tokens)[1]
        if self.tree is None or self.tree.straight:
            return place
        windows, nodes = self.tree.depths.shape
        lane = self.lane_of(tokens)
        offset = place - self.position[lane]
        depth = self.tree.depths[lane.clamp(max=windows - 1), offset.clamp(0, nodes - 1)]
        return torch.where(lane < self.num_windows, self.position[lane] + depth, place)

    @property
    def export_table(self) -> Tensor:
        """[exports, 3]: lane, slot, line. There must be some."""
        rows = [[e.lane, e.slot, e.line] for e in self.exports]
        return self.once("export table", lambda: to_device(rows, self.rows.device))

    @property
    def windows(self) -> Windows:
        return self.once("windows", lambda: Windows(self.lanes(0, self.num_windows)))

    def lane(self, lane: int) -> StateStep:
        return self.once(("lane", lane), lambda: self.lanes(lane, lane + 1))

    @property
    def host(self) -> list[tuple[int, int, int, int]]:
        """(row, count, offset, position) of every lane. Waits for the device."""
        columns = (self.rows, self.counts, self.offsets[:-1], self.position)
        return self.once("host", lambda: list(zip(*(c.tolist() for c in columns), strict=True)))

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


class Windows:
    """The window lanes of a step, padded to one length T: which of their tokens exist, and where they lie."""

    def __init__(self, step: StateStep) -> None:
        self.step = step
        self.tokens = torch.arange(step.longest_window, device=step.rows.device)

    @cached_property
    def valid(self) -> Tensor:
        """[N, T]: token t of the lane exists."""
        return (self.tokens < self.step.counts[:, None]) & (self.step.rows > 0)[:, None]

    @cached_property
    def full(self) -> bool:
        """No lane is padding or shorter than another: the flat batch begins with [N, T] tokens in order."""
        return bool(self.valid.all())

    @cached_property
    def flat(self) -> Tensor:
        """[N, T]: where each token lies in the flat batch; 0 for those that do not exist."""
        return torch.where(self.valid, self.step.offsets[:-1, None] + self.tokens, 0)

    @cached_property
    def existing(self) -> tuple[Tensor, Tensor]:
        """(lane, token) of every token that exists."""
        lane, token = self.valid.nonzero(as_tuple=True)
        return lane, token

    @cached_property
    def folding(self) -> Tensor:
        """Lanes that begin with a fold."""
        return ((self.step.end_base > self.step.base) & (self.step.rows > 0)).nonzero().flatten()

    @cached_property
    def fold_from(self) -> Checkpoints:
        lanes, step = self.folding, self.step
        return Checkpoints(step.rows[lanes], step.read_slot[lanes], step.base[lanes])

    @cached_property
    def fold_to(self) -> Checkpoints:
        """Where those leave it."""
        lanes, step = self.folding, self.step
        return Checkpoints(step.rows[lanes], step.write_slot[lanes], step.end_base[lanes])

    @cached_property
    def begin_from(self) -> Checkpoints:
        """What each lane reads when that is done."""
        if not len(self.folding):
            return self.step.read_from
        step = self.step
        slots = torch.where(step.end_base > step.base, step.write_slot, step.read_slot)
        return Checkpoints(step.rows, slots, step.end_base)

    def take(self, x: Tensor) -> Tensor:
        """[tokens, ...] -> [N, T, ...], zero where none exists"""
        if self.full:
            return x.narrow(0, 0, self.valid.numel()).view(*self.valid.shape, *x.shape[1:])
        return x[self.flat].masked_fill_(~self.valid.reshape(*self.valid.shape, *[1] * (x.dim() - 1)), 0)

    def put(self, out: Tensor, result: Tensor) -> None:
        """[N, T, ...] -> [tokens, ...], for tokens that exist."""
        if self.full:
            out[: self.valid.numel()] = result.flatten(0, 1)
        else:
            out[self.flat[self.existing]] = result[self.existing].to(out.dtype)

    def existing_of(self, x: Tensor) -> Tensor:
        """[N, T, ...] -> [tokens that exist, ...]"""
        return x.flatten(0, 1) if self.full else x[self.existing]
