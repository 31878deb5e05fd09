"""Paged keys and values, for attention layers only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..config import Limits
from ..ops.places import KVState, Transfer
from ..ops.transfer import Buffer, columns, to_device
from ..plan import PageMap, RowStart
from .spec import KVSpec


class KVPool:
    """layers  {layer name: keys and values}, each [pages + 1, page_size, heads, its width]; page 0 is padding
    table   [rows + 1, ordinals]: where each page of a row's context is stored
    """

    def __init__(self, specs: Mapping[str, KVSpec], limits: Limits, device: torch.device) -> None:
        self.page_size = limits.page_size
        self.layers: dict[str, KVState] = {}
        for name, spec in specs.items():
            shape = (limits.num_pages + 1, limits.page_size, spec.heads)
            keys, values = (torch.zeros(*shape, dim, dtype=spec.dtype, device=device) for dim in spec.dims)
            self.layers[name] = KVState(keys, values)
        self.table = torch.zeros(
            limits.max_num_seqs + 1, limits.pages_per_row, dtype=torch.int32, device=device
        )
        self._places = self.table.view(-1)
        self._told = Buffer(3 * self.table.numel(), device, torch.int32)
        """Of every page that a step maps, its place in the table, as two words; then of every one, which it is."""

    def start(self, starts: tuple[RowStart, ...]) -> None:
        """A new tenant must not find the last one's pages."""
        if starts:
            self.table.index_fill_(0, to_device([start.row for start in starts], self.table.device), 0)

    def map(self, pages: tuple[PageMap, ...], turn: int) -> None:
        """turn: of the step that they are for"""
        if not pages:
            return
        rows, ordinals, stored = columns(pages)
        places = rows * self.table.shape[1] + ordinals
        told = self._told.fill(np.concatenate((places.view(np.int32), stored)), turn)
        where, which = told.split((2 * len(pages), len(pages)))
        self._places.index_copy_(0, where.view(torch.int64), which)

    def move(self, rows: Tensor, source: Tensor, target: Tensor) -> None:
        """Copy keys and values between positions of a row: what a tree's accepted path needs.

        rows, source, target  [n]; all sources are read before any target is written
        """
        taken, put = (
            self.table[rows, position // self.page_size].long() * self.page_size + position % self.page_size
            for position in (source, target)
        )
        along = Transfer(rows, source, target, taken, put)
        for layer in self.layers.values():
            layer.move(along)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for layer in self.layers.values() for part in layer)
