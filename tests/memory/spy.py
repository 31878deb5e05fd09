"""Which bytes a step wrote. Compared as bit patterns, so that NaN equals itself and -0.0 is not 0.0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.memory.kv_pool import KVPool
from holdfast.memory.state_pool import StatePool

Cells = set[tuple[int, int]]
"""(row, place in its ring)"""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(x: Tensor) -> Tensor:
    """The same memory, as integers."""
    return x.view(_INTEGERS[x.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def state_tensors(pool: StatePool) -> Iterator[tuple[str, str, Tensor]]:
    """(what indexes it, its name, the tensor), for every tensor that a state pool holds"""
    for layer_name, layer in pool.layers.items():
        for name, saved in layer.saved().items():
            yield "slot", f"{layer_name}.{name}", saved
        for name, ring in layer.rings().items():
            yield "row", f"{layer_name}.{name}", ring
    for name, cursor in vars(pool.cursors).items():
        yield "cursor", name, cursor


def kv_tensors(pool: KVPool) -> Iterator[tuple[str, Tensor]]:
    for name, parts in pool.layers.items():
        yield from ((f"{name}.{part}", x) for part, x in zip(("keys", "values"), parts, strict=True))
    yield "table", pool.table


def poison(pool: StatePool) -> None:
    """No byte is worth reading before somebody wrote it."""
    for kind, _, x in state_tensors(pool):
        if kind != "cursor":
            x.fill_(torch.nan if x.dtype.is_floating_point else 77)  # whose scales are NaN, then


class Snapshot:
    """A state pool's bytes at one moment."""

    def __init__(self, pool: StatePool) -> None:
        self._held = [(kind, name, bits(x), bits(x).clone()) for kind, name, x in state_tensors(pool)]

    def changed(self, kind: str) -> Iterator[tuple[str, list[Any]]]:
        """Per tensor of this kind that differs now: which slots, which [row, place], or which rows."""
        axes = 2 if kind == "row" else 1
        for held, name, now, before in self._held:
            if held == kind and not torch.equal(now, before):
                where = (now != before).reshape(*now.shape[:axes], -1).any(-1).nonzero()
                yield name, where.squeeze(1).tolist() if axes == 1 else where.tolist()

    def assert_only(self, *, slots: set[int], cells: Mapping[str, Cells], cursors: set[int]) -> None:
        """Nothing was written but states in `slots`, ring places in `cells` by tensor, cursors of rows."""
        for name, where in self.changed("slot"):
            assert set(where) <= slots, f"{name}: wrote slots {where}, not only {slots}"
        for name, where in self.changed("row"):
            extra = {(row, place) for row, place in where} - cells.get(name, set())
            assert not extra, f"{name}: wrote (row, place) {sorted(extra)}"
        for name, where in self.changed("cursor"):
            assert set(where) <= cursors, f"cursor {name} of rows {where}"

    def assert_unchanged(self) -> None:
        self.assert_only(slots=set(), cells={}, cursors=set())
