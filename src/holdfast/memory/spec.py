"""What a layer keeps between steps. Pools, sizing and the sanitizer derive from it; nothing else knows shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..config import ring_capacity
from ..ops.rounding import GREATEST, SCALE_DTYPE


@dataclass(frozen=True)
class TensorSpec:
    """Named axes. `sizes` are in logical order; `order` says how the kernels want them stored."""

    sizes: Mapping[str, int]
    dtype: torch.dtype
    order: tuple[str, ...] = ()
    sharded: str | None = None
    """The axis that a tensor-parallel group divides; `sizes` already hold this rank's part."""
    scaled: str | None = None
    """The axis along which numbers share a scale, if the dtype is one that needs scales."""

    def __post_init__(self) -> None:
        if self.order and sorted(self.order) != sorted(self.sizes):
            raise ValueError(f"order {self.order} does not name the axes {tuple(self.sizes)}")
        if self.sharded is not None and self.sharded not in self.sizes:
            raise ValueError(f"sharded axis {self.sharded!r} is not one of {tuple(self.sizes)}")
        if self.dtype in GREATEST and self.scaled not in self.sizes:
            raise ValueError(f"{self.dtype} needs scales along an axis, {self.scaled!r} is not one")

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        return tuple(self.sizes[axis] for axis in (self.order or self.sizes))

    @property
    def scale(self) -> TensorSpec | None:
        """Of the scales, if there are any."""
        if self.dtype not in GREATEST:
            return None
        assert self.scaled is not None
        return TensorSpec({**self.sizes, self.scaled: 1}, SCALE_DTYPE, self.order, self.sharded)

    @property
    def nbytes(self) -> int:
        own = math.prod(self.shape) * self.dtype.itemsize
        return own if self.scale is None else own + self.scale.nbytes


@dataclass(frozen=True)
class ConvSpec:
    """A causal convolution's inputs: width - 1 of them beside a checkpoint, a few more in the row's ring."""

    channels: int
    width: int
    dtype: torch.dtype
    sharded: bool = True
    longer: int = 0
    """Places of the ring beyond those that windows need."""

    def places(self, max_window: int) -> int:
        """Of the ring."""
        return ring_capacity(self.width, max_window) + self.longer


@dataclass(frozen=True)
class StateSpec:
    """A recurrent layer's state, by name: any number of convolutions, perhaps a temporal state with its entries."""

    conv: Mapping[str, ConvSpec] = field(default_factory=dict)
    temporal: TensorSpec | None = None
    entry: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that a checkpoint holds."""
        conv = tuple(f"conv.{name}" for name in self.conv)
        return conv if self.temporal is None else (*conv, "temporal")

    def slot_bytes(self) -> int:
        """One checkpoint of this layer."""
        conv = sum((c.width - 1) * c.channels * c.dtype.itemsize for c in self.conv.values())
        return conv + (self.temporal.nbytes if self.temporal else 0)

    def row_bytes(self, journal_capacity: int, max_window: int) -> int:
        """Journal and rings of one running request."""
        rings = sum(c.places(max_window) * c.channels * c.dtype.itemsize for c in self.conv.values())
        return rings + journal_capacity * sum(e.nbytes for e in self.entry.values())


@dataclass(frozen=True)
class KVSpec:
    """What an attention layer keeps of each token: for every head a key, and a value."""

    heads: int
    head_dim: int
    dtype: torch.dtype
    value_dim: int | None = None
    """None: as wide as a key. 0: the key holds it."""

    @property
    def dims(self) -> tuple[int, int]:
        """Of keys and of values."""
        return self.head_dim, self.head_dim if self.value_dim is None else self.value_dim

    def page_bytes(self, page_size: int) -> int:
        return page_size * self.heads * sum(self.dims) * self.dtype.itemsize
