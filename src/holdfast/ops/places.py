"""Places in the pools: what an operation reads and writes there, for which rows, at which positions.

Operations touch state through the methods of ConvState, TemporalState and KVState, which take one of these and
tell the watch, if there is one. So whoever watches sees the very indices that were used, and what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .rounding import narrowed, widened

if TYPE_CHECKING:
    from .step import StateStep


@dataclass(frozen=True)
class Checkpoints:
    """Slots, one for each row: the state after `position` tokens. At 0 there is none, and it is not looked at.

    rows, slots, position  [N]
    """

    rows: Tensor
    slots: Tensor
    position: Tensor

    @cached_property
    def cold(self) -> Tensor:
        """Which of them have none."""
        return (self.position == 0).nonzero().flatten()

    @cached_property
    def runs(self) -> list[slice]:
        return _runs(self.slots)

    def read(self, saved: Tensor) -> Tensor:
        """[N, ...], zero where there is none; perhaps a view."""
        if len(self.runs) == 1 and not len(self.cold):
            return saved[self.runs[0]]
        return saved.index_select(0, self.slots).index_fill_(0, self.cold, 0)


@dataclass(frozen=True)
class Scattered:
    """States of rows where they lie: in these runs of slots of `stored` [slots, ...], one row after another."""

    stored: Tensor
    runs: list[slice]

    def gathered(self) -> Tensor:
        return torch.cat([self.stored[run] for run in self.runs])


States = Tensor | Scattered
"""Of N rows, [N, ...]."""


@dataclass(frozen=True)
class Cells:
    """Places in rings: of each row, those of its `count` tokens from `first` on.

    rows, first  [N]
    where        [N * count]: the rings of all rows laid end to end
    empty        [m]: which of those hold no token of their row; what lies there is not looked at
    """

    rows: Tensor
    first: Tensor
    count: int
    where: Tensor
    empty: Tensor | None = None
    _by_head: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict, compare=False, repr=False)

    def read(self, ring: Tensor) -> Tensor:
        """[N, count, ...], zero where a place is empty. Of what has heads, a head's tokens lie side by side in
        memory: products over them would have to copy any other order."""
        lanes, heads = self.rows.shape[0], ring.shape[2]
        if ring.dim() == 3:
            return _gather(ring.flatten(0, 1), self.where, self.empty).view(lanes, self.count, heads)
        if heads not in self._by_head:
            self._by_head[heads] = self._each_head(heads)
        found = _gather(ring.flatten(0, 2), *self._by_head[heads])
        return found.view(lanes, heads, self.count, *ring.shape[3:]).transpose(1, 2)

    def _each_head(self, heads: int) -> tuple[Tensor, Tensor | None]:
        """`where` and `empty`, head after head of each row."""
        head = torch.arange(heads, device=self.where.device)[:, None]
        where = self.where.view(self.rows.shape[0], 1, self.count) * heads + head
        if self.empty is None:
            return where.flatten(), None
        lane, token = self.empty // self.count, self.empty % self.count
        return where.flatten(), ((lane * heads + head) * self.count + token).flatten()

    def write(self, ring: Tensor, values: Tensor) -> None:
        """values [N * count, ...]"""
        ring.flatten(0, 1).index_copy_(0, self.where, values)


@dataclass(frozen=True)
class PagePlaces:
    """Places in pages, one for each token: `position` of `rows`. All are [N]."""

    rows: Tensor
    position: Tensor
    pages: Tensor
    offset: Tensor

    def where(self, page_size: int) -> Tensor:
        """In all pages laid end to end."""
        return self.pages * page_size + self.offset


@dataclass(frozen=True)
class Context:
    """The pages of one row, in order, that hold its first `length` tokens."""

    row: int
    length: int
    pages: Tensor

    @cached_property
    def runs(self) -> list[slice]:
        return _runs(self.pages)

    def read(self, stored: Tensor) -> Tensor:
        """[heads, length, head_dim]; perhaps a view."""
        if len(self.runs) != 1:
            return stored.index_select(0, self.pages).flatten(0, 1).narrow(0, 0, self.length).transpose(0, 1)
        page, place, head, channel = stored.stride()
        _, _, heads, width = stored.shape
        begin = stored.storage_offset() + self.runs[0].start * page
        return stored.as_strided((heads, self.length, width), (head, place, channel), begin)


@dataclass(frozen=True)
class Transfer:
    """Of each row, what lies at position `source` goes to position `target`; all is read before any is written.

    rows, source, target  [N]
    taken, put            [N]: the places of both, in the rings of all rows, or in all pages, laid end to end
    """

    rows: Tensor
    source: Tensor
    target: Tensor
    taken: Tensor
    put: Tensor

    def apply(self, stored: Tensor) -> None:
        flat = stored.flatten(0, 1)
        flat[self.put] = flat[self.taken]


def _gather(held: Tensor, where: Tensor, empty: Tensor | None) -> Tensor:
    found = held.index_select(0, where)
    return found if empty is None else found.index_fill_(0, empty, 0)


def _runs(ids: Tensor) -> list[slice]:
    """Those that follow one another: what lies there need not be gathered. None, if a device had to be asked."""
    if ids.device.type != "cpu":
        return []
    runs: list[slice] = []
    for id_ in ids.tolist():
        if runs and runs[-1].stop == id_:
            runs[-1] = slice(runs[-1].start, id_ + 1)
        else:
            runs.append(slice(id_, id_ + 1))
    return runs


@dataclass(frozen=True)
class WholeStep:
    """All places that a uniform step of windows uses of a state: its kernels work them out, from the step alone.

    pages  the page table, of keys and values
    """

    step: StateStep
    pages: Tensor | None = None


Place = Checkpoints | Cells | PagePlaces | Context | Transfer


class Watch(Protocol):
    """Is told of every access to one state of one layer."""

    def read(self, place: Place) -> None: ...

    def wrote(self, place: Place) -> None: ...

    def moved(self, place: Transfer) -> None: ...

    def used(self, place: WholeStep) -> None: ...


@dataclass(frozen=True)
class ToKeep:
    """Inputs [tokens, channels] of the windows of a step, which a convolution's state has yet to keep."""

    x: Tensor
    state: ConvState


@dataclass(frozen=True)
class ConvState:
    """One causal convolution of one layer.

    saved  [slots, width - 1, channels]  the inputs just before each checkpoint's position
    ring   [rows, capacity, channels]    recent inputs, by position % capacity
    """

    saved: Tensor
    ring: Tensor
    watch: Watch | None = None

    def load(self, at: Checkpoints, inputs: Tensor) -> Tensor:
        """inputs [N]: which of its slot's is wanted -> [N, channels]"""
        if self.watch:
            self.watch.read(at)
        where = at.slots * self.saved.shape[1] + inputs  # here, so that what was watched is what is read
        return self.saved.flatten(0, 1).index_select(0, where)

    def store(self, at: Checkpoints, values: Tensor) -> None:
        if self.watch:
            self.watch.wrote(at)
        self.saved[at.slots] = values

    def read(self, at: Cells) -> Tensor:
        if self.watch:
            self.watch.read(at)
        return at.read(self.ring)

    def append(self, at: Cells, values: Tensor) -> None:
        if self.watch:
            self.watch.wrote(at)
        at.write(self.ring, values)

    def move(self, along: Transfer) -> None:
        if self.watch:
            self.watch.moved(along)
        along.apply(self.ring)


@dataclass(frozen=True)
class TemporalState:
    """The big state of one layer.

    saved    [slots, ...]           checkpoints, axes in the order that the operation declared
    journal  {name: [rows, capacity, ...]}  what each token since the checkpoint added, by position % capacity
    scale    [slots, ...]           of checkpoints in a scaled dtype: of size 1 along the axis that shares one
    """

    saved: Tensor
    journal: dict[str, Tensor]
    watch: Watch | None = None
    scale: Tensor | None = None

    @property
    def capacity(self) -> int:
        return next(iter(self.journal.values())).shape[1]

    def load(self, at: Checkpoints) -> States:
        """To be read only, for it may be the pool's own. In float32 nothing is copied."""
        if self.watch:
            self.watch.read(at)
        if self.scale is not None:
            numbers = at.read(self.saved.view(torch.int8))  # torch gathers no float8
            return widened(numbers.view(self.saved.dtype), at.read(self.scale))
        if self.saved.dtype == torch.float32 and len(at.runs) > 1 and not len(at.cold):
            return Scattered(self.saved, at.runs)
        return at.read(self.saved)

    def store(self, at: Checkpoints, values: Tensor) -> None:
        """values [N, ...] in float32, which are rounded here"""
        if self.watch:
            self.watch.wrote(at)
        if self.scale is None:
            self.saved[at.slots] = values.to(self.saved.dtype)
        else:
            sizes = zip(self.scale.shape, self.saved.shape, strict=True)
            shared = next(axis for axis, (scales, numbers) in enumerate(sizes) if scales != numbers)
            self.saved[at.slots], self.scale[at.slots] = narrowed(values, self.saved.dtype, shared)

    def read(self, at: Cells) -> dict[str, Tensor]:
        if self.watch:
            self.watch.read(at)
        return {name: at.read(ring) for name, ring in self.journal.items()}

    def append(self, at: Cells, entries: Mapping[str, Tensor]) -> None:
        if self.watch:
            self.watch.wrote(at)
        for name, ring in self.journal.items():
            at.write(ring, entries[name].to(ring.dtype))

    def move(self, along: Transfer) -> None:
        if self.watch:
            self.watch.moved(along)
        for ring in self.journal.values():
            along.apply(ring)


@dataclass(frozen=True)
class KVState:
    """Keys and values of one layer, each [pages, page_size, heads, its width]; 0 wide, if keys hold the values."""

    keys: Tensor
    values: Tensor
    watch: Watch | None = None

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.keys, self.values))

    @property
    def page_size(self) -> int:
        return self.keys.shape[1]

    def store(self, at: PagePlaces, keys: Tensor, values: Tensor) -> None:
        if self.watch:
            self.watch.wrote(at)
        for stored, fresh in zip(self, (keys, values), strict=True):
            stored.flatten(0, 1).index_copy_(0, at.where(self.page_size), fresh.to(stored.dtype))

    def read(self, at: Context) -> tuple[Tensor, Tensor]:
        """Keys and values, each [heads, length, its width]"""
        if self.watch:
            self.watch.read(at)
        return at.read(self.keys), at.read(self.values)

    def move(self, along: Transfer) -> None:
        if self.watch:
            self.watch.moved(along)
        for stored in self:
            along.apply(stored)
