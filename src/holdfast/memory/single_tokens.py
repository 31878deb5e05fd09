"""The sanitizer's checks of a uniform step of single tokens: on the device, and in the same shapes whatever it
holds, so that they are recorded with it.

Kernels work out their places themselves, from the step that they are given. So what a layer tells is that step, and
layers that were given the same one are checked together, each state by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..corruption import Finding
from ..ops.stamps.findings import CURSOR, NO_STAMP, NO_STATE, WHAT, Found, buffer, read
from ..ops.step import StateStep
from ..ops.transfer import to_device
from ..plan import Grant, RowWork
from .accesses import Use
from .stamps import Name, Stamps, position_of

NOBODY = -1
"""The owner of a place that must not be written."""


class SingleTokens:
    def __init__(
        self,
        *,
        slots: Stamps,
        pages: Stamps,
        page_size: int,
        stand: Tensor,
        tickets: Tensor,
        slot_owner: Tensor,
        page_owner: Tensor,
        chain: Tensor,
        keys: Tensor,
    ) -> None:
        device, rows = stand.device, len(stand)
        self._slots, self._pages, self._page_size = slots, pages, page_size
        self._names: list[Name] = [*slots.names, *pages.names]
        self._meant = torch.zeros(4, rows, dtype=torch.int64, device=device)
        self._granted = torch.zeros(2, rows, dtype=torch.int64, device=device)
        self._shared = (stand, tickets, slot_owner, page_owner, chain, keys)
        self.found = buffer(device)
        """What the last step has shown; the next one overwrites it."""

    def promise(self, grants: Sequence[Grant]) -> None:
        if grants:
            rows, slots, lines = to_device([(g.row, g.slot, g.line) for g in grants], self._meant.device).t()
            self._granted[:, rows] = torch.stack((slots, lines))

    def expect(self, work: Sequence[RowWork], positions: Sequence[int], uncertain: Sequence[int]) -> None:
        """What the plan means, lane by lane."""
        least = [most - drafts for most, drafts in zip(positions, uncertain, strict=True)]
        columns = ([w.row for w in work], least, positions, [w.tokens for w in work])
        padding = [0] * (self._meant.shape[1] - len(work))
        to_device([[*column, *padding] for column in columns], self._meant.device, into=self._meant)

    def settle(
        self,
        uses: Sequence[Use],
        step: StateStep,
        *,
        tokens: Tensor,
        tell: Tensor,
        chosen: Tensor,
        used: Tensor,
    ) -> None:
        """As `Sanitizer.settle`. tell: rows that are given what was chosen; used: grants, by lane"""
        from ..ops.stamps import triton as checks  # where steps are uniform there is Triton

        ledger = checks.Ledger(self._meant, self._granted, *self._shared)
        checks.check_cursors(self.found, ledger, step, tokens, tell, chosen, self._unused(uses))
        for use in uses:
            if use.place.pages is not None:
                pages, first = use.place.pages, len(self._slots.names)
                at = (use.place.step, pages, use.states, use.stamps.held, first, self._page_size)
                checks.check_paged(self.found, ledger, *at)
            else:
                held = (use.states, use.stamps.held, self._slots.held, use.reach)
                checks.check_recurrent(self.found, ledger, use.place.step, used, *held)
        checks.publish(ledger, step, used, NOBODY)

    def _unused(self, uses: Sequence[Use]) -> int:
        """Every state keeps something of each token. One that kept nothing was mistaken for another."""
        names = {name for use in uses for name in use.names}
        return next((number for number, name in enumerate(self._names) if name not in names), -1)

    def findings(self, found: Tensor, step: int, generations: Mapping[int, int]) -> list[Finding]:
        """Of `found` as it was after that step, on the host."""
        return [
            Finding(
                step=step,
                what=WHAT[one.what],
                layer=layer,
                state=name,
                row=one.row,
                generation=generations.get(one.row, 0),
                place=one.place,
                expected=one.expected,
                found=None if one.stamp == NO_STAMP else position_of(one.stamp),
            )
            for one in read(found)
            for layer, name in [self._name(one)]
        ]

    def _name(self, found: Found) -> Name:
        if found.state == NO_STATE:
            return ("-", "cursors" if found.what == CURSOR else "tokens")
        return self._names[found.state]
