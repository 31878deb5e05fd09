"""Spot checks of content: a row's state, computed once more from its tokens alone, beside what the pools hold."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..config import Limits
from ..ids import Page, Row, Slot
from ..layers.batch import Batch
from ..memory.inspection import Check
from ..memory.kv_pool import KVPool
from ..memory.sanitizer import one_row
from ..memory.state_pool import StatePool
from ..ops.rounding import GREATEST
from ..plan import PageMap, RowStart
from ..request import SamplingParams
from ..spec.ensemble import Ensemble
from .inputs import Lanes
from .tables import RowTables

EVERY = 4
"""Steps from one check to the next. Rows take turns."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05, **dict.fromkeys(GREATEST, 0.25)}
"""The largest difference, in units of a tensor's largest value, by the coarsest dtype that anything is kept in: a
prompt taken in one run rounds otherwise than one that came in pieces. In exact mode nothing may differ."""

Compared = tuple[str, str, Tensor, Tensor]
"""Layer, state, what the pools hold, what it should be."""


class Recomputation:
    def __init__(
        self, model: Ensemble, limits: Limits, state: StatePool, kv: KVPool, tables: RowTables
    ) -> None:
        self._model, self._state, self._kv, self._tables = model, state, kv, tables
        device = kv.table.device
        self._max_window = limits.max_window
        one = one_row(limits)
        self._own_slot = Slot(one.num_slots)
        self._own_state = StatePool(model.state_specs(), one, device)
        self._own_kv = KVPool(model.kv_specs(), one, device)
        pages = tuple(PageMap(Row(1), i, Page(i + 1)) for i in range(limits.pages_per_row))
        self._own_kv.map(pages, turn=0)
        held = [x for s in state.layers.values() for x in (*s.saved().values(), *s.rings().values())]
        held += [part for parts in kv.layers.values() for part in parts]
        self._tolerance = 0.0 if model.model.ops.exact else max(TOLERANCE[x.dtype] for x in held)

    def check(self, lanes: Lanes, step: int) -> Check | None:
        """Of one of the step's rows, when it is time. Waits for the device."""
        if step % EVERY or not lanes.work:
            return None
        row = int(lanes.work[step // EVERY % len(lanes.work)].row)
        at = self._state.cursors
        base, length, slot = (int(cursor[row]) for cursor in (at.base, at.length, at.read_slot))
        compared = list(self._compare(row, slot, base, base + length))
        device = self._kv.table.device
        wrong = [[not self._agree(held, meant)] for _, _, held, meant in compared]
        rows, place, expected = (torch.tensor([x], device=device) for x in (row, slot, base + length))
        names = [(layer, name) for layer, name, _, _ in compared]
        return Check("recomputation", names, rows, place, expected, None, torch.tensor(wrong, device=device))

    def _agree(self, held: Tensor, meant: Tensor) -> bool:
        scale = float(meant.float().abs().max()) if meant.numel() else 0.0
        worst = float((held.float() - meant.float()).abs().max()) if meant.numel() else 0.0
        return worst <= self._tolerance * scale  # and not if it is NaN

    def _compare(self, row: int, slot: int, base: int, position: int) -> Iterator[Compared]:
        self._absorb(row, position)
        line = int(self._own_state.cursors.base[1])
        for layer, held in self._state.layers.items() if base == line > 0 else ():
            meant = self._own_state.layers[layer].saved()
            yield from ((layer, name, x[slot], meant[name][1]) for name, x in held.saved().items())
        for layer, held in self._state.layers.items():
            own = self._own_state.layers[layer].rings()
            for name, ring in held.rings().items():
                # drafts that were rejected lie up to a window ahead, in the places of what is needed no more
                first = max(line, position + self._max_window - ring.shape[1])
                places = torch.arange(first, position, device=ring.device) % ring.shape[1]
                yield layer, name, ring[row, places], own[name][1, places]
        pages = self._kv.table[row]
        for layer, parts in self._kv.layers.items():
            for part, own_part in zip(parts, self._own_kv.layers[layer], strict=True):
                there, right = part[pages], own_part[self._own_kv.table[1]]
                yield layer, "kv", there.flatten(0, 1)[:position], right.flatten(0, 1)[:position]

    def _absorb(self, row: int, count: int) -> None:
        """As one run, in pools where nobody else is: nothing that is kept is read again on the way."""
        start = RowStart(Row(1), 1, (), self._own_slot, Slot(0), 0, SamplingParams(), 0)
        self._own_state.start((start,))
        device = self._kv.table.device
        step = self._own_state.begin(
            rows=torch.tensor([1], device=device),
            counts=torch.tensor([count], device=device),
            offsets=torch.tensor([0, count], device=device),
            num_windows=0,
            longest_window=0,
        )
        positions = torch.arange(count, device=device)
        tokens = self._tables.tokens[row, :count]
        self._model(Batch(tokens, positions, step, self._own_state, self._own_kv))
        self._own_state.commit(step=step, accepted=step.counts)
