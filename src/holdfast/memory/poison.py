"""NaN wherever nobody's state is: whoever reads it by mistake cannot come away with plausible text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..ops.rounding import GREATEST
from ..plan import StepPlan
from .inspection import Check
from .kv_pool import KVPool
from .stamps import Name
from .state_pool import StatePool


class Poison:
    def __init__(self, state: StatePool, kv: KVPool) -> None:
        saved = [(layer, name, x) for layer, s in state.layers.items() for name, x in s.saved().items()]
        self._slots = [held for held in saved if held[2].dtype not in GREATEST]  # their scales are enough
        self._rings = [(layer, name, x) for layer, s in state.layers.items() for name, x in s.rings().items()]
        self._pages = [(layer, "kv", part) for layer, parts in kv.layers.items() for part in parts]
        for _, _, held in self._all():
            held.fill_(torch.nan)

    def apply(self, plan: StepPlan) -> None:
        """What became free; and the rings of rows that have new tenants."""
        rows = [start.row for start in plan.starts]
        for ids, tensors in (
            (plan.freed_slots, self._slots),
            (plan.freed_pages, self._pages),
            (rows, self._rings),
        ):
            if ids:
                for _, _, held in tensors:
                    held[torch.tensor(ids, device=held.device)] = torch.nan

    def check_padding(self) -> Check:
        """Row 0, slot 0 and page 0 are nobody's for ever."""
        names: list[Name] = [(layer, name) for layer, name, _ in self._all()]
        touched = torch.stack([~held[0].isnan().all() for _, _, held in self._all()])
        nowhere = torch.zeros(1, dtype=torch.int64, device=touched.device)
        return Check("padding", names, nowhere, nowhere, nowhere, None, touched[:, None])

    def _all(self) -> Iterator[tuple[str, str, Tensor]]:
        yield from self._slots
        yield from self._rings
        yield from self._pages
