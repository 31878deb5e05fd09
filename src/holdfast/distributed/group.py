"""A group of ranks, and how a tensor is divided among them. A group of one divides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """This process's place among the ranks that hold one model together."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank={self.rank} is not one of the {self.size} ranks 0 to {self.size - 1}")

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`."""
        self._require_one("all_reduce")
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's `x`, joined along `dim` in the order of the ranks."""
        self._require_one("all_gather")
        return x

    def _require_one(self, operation: str) -> None:
        if self.size > 1:
            raise NotImplementedError(
                f"{operation} among {self.size} ranks: this version computes on one device; use a group of size 1"
            )


class Sliceable(Protocol):
    """A tensor, or a tensor in a file of which only the part asked for is read."""

    def __getitem__(self, key: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class Section:
    """`length` consecutive entries along an axis: where they start in the full tensor and in the rank's own."""

    full: int
    local: int
    length: int


@dataclass(frozen=True)
class Shard:
    """How a parameter is divided along `axis`.

    `parts` are the full sizes of consecutive sections of the axis. Each section is divided among the ranks by
    itself, so that a merged q|k|v projection with parts (q, k, v) gives every rank its share of q, of k and of v.
    """

    axis: int
    parts: tuple[int, ...]
    group: Group

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError(f"axis={self.axis} must be counted from the front: 0 or more")
        for part in self.parts:
            if part % self.group.size:
                raise ValueError(
                    f"axis {self.axis} of {'+'.join(map(str, self.parts))} cannot be divided: "
                    f"{part} is not a multiple of the {self.group.size} ranks; use a number of ranks that divides it"
                )

    @property
    def full_size(self) -> int:
        return sum(self.parts)

    @property
    def local_size(self) -> int:
        return self.full_size // self.group.size

    def sections(self) -> Iterator[Section]:
        """The rank's share of each part, in order."""
        full = local = 0
        for part in self.parts:
            length = part // self.group.size
            yield Section(full + self.group.rank * length, local, length)
            full += part
            local += length

    def take(self, source: Sliceable) -> Tensor:
        """The rank's piece of a full tensor, or of a slice of a file."""
        if self.group.size == 1:
            return source[...]
        pieces = [source[self.along_axis(s.full, s.length)] for s in self.sections()]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=self.axis)

    def along_axis(self, start: int, length: int) -> tuple[slice, ...]:
        """The index of `length` entries from `start` along the axis."""
        return (slice(None),) * self.axis + (slice(start, start + length),)
