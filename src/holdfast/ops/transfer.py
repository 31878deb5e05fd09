"""Numbers from the host to a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Column = NDArray[np.int64]
TURNS = 3
"""With two steps in flight a third is prepared."""
KEPT = 64
"""Sizes in which parts of buffers are kept: to make one takes the host half as long as a copy."""


def to_device(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Of whatever torch.tensor takes."""
    made = torch.tensor(values, dtype=dtype)
    if device.type != "cpu":
        made = made.pin_memory()  # else the copy would wait for all that was launched
    return made.to(device, non_blocking=True)


def columns(told: Sequence[Sequence[int]]) -> list[Column]:
    """Of tuples of ids: they are no plain integers, which numpy takes long to see of a list."""
    return [np.fromiter(column, np.int64, len(told)) for column in zip(*told, strict=True)]


def parts_of(*whole: Tensor) -> Callable[[int], tuple[Tensor, ...]]:
    """The first so many elements of each."""
    return lru_cache(KEPT)(lambda size: tuple(tensor[:size] for tensor in whole))


class Buffer:
    """A device tensor of fixed address, filled from the host. Host copies take turns: some may still be in flight
    while the next is written."""

    def __init__(self, size: int, device: torch.device, dtype: torch.dtype = torch.int64) -> None:
        self.device = torch.zeros(size, dtype=dtype, device=device)
        pinned = device.type == "cuda"
        self._host = [torch.zeros(size, dtype=dtype, pin_memory=pinned) for _ in range(TURNS)]
        self._written = [host.numpy() for host in self._host]
        self._parts = parts_of(self.device, *self._host)

    def fill(self, values: Sequence[int] | Column, turn: int) -> Tensor:
        """The first len(values) elements, in place."""
        size, which = len(values), turn % TURNS
        self._written[which][:size] = values
        device, *host = self._parts(size)
        return device.copy_(host[which], non_blocking=True)
