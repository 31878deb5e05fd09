"""The sanitizer's checks of a uniform step: on the device, and in the same shapes whatever it holds, so that they are
recorded with it.

Kernels work out their places themselves, from the step that they are given. So what a layer tells is that step, and
layers that were given the same one are checked together, each state by itself. What they find is the end of the
step's report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub

import numpy as np
import torch
from torch import Tensor

from ..corruption import Finding
from ..ops.acceptance.reference import Drafts
from ..ops.stamps.findings import CURSOR, NO_STAMP, NO_STATE, SIZE, WHAT, Found, read
from ..ops.stamps.ledger import Ledger, Meant
from ..ops.step import StateStep
from ..ops.transfer import Buffer, to_device
from ..plan import Grant, RowWork
from .accesses import Use
from .stamps import Name, Stamps, position_of

NOBODY = -1
"""The owner of a place that must not be written."""


class RecordedChecks:
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
        self._slots, self._page_size = slots, page_size
        self._names: list[Name] = [*slots.names, *pages.names]
        self._told = Buffer(4 * rows + SIZE, device)
        """What is meant, then what is found. With the former the host sends 0, for the number of findings."""
        self.found = self._told.device[4 * rows :]
        """What the last step has shown; the next one overwrites it."""
        meant = self._told.device[: 4 * rows].view(4, rows)
        granted = torch.zeros(2, rows, dtype=torch.int64, device=device)
        self._ledger = Ledger(meant, granted, stand, tickets, slot_owner, page_owner, chain, keys)
        self._meant = Meant(meant[0], meant[3])

    def promise(self, grants: Sequence[Grant]) -> None:
        if grants:
            rows, slots, lines = to_device([(g.row, g.slot, g.line) for g in grants], self.found.device).t()
            self._ledger.granted[:, rows] = torch.stack((slots, lines))

    def expect(
        self, work: Sequence[RowWork], positions: Sequence[int], uncertain: Sequence[int], turn: int
    ) -> None:
        """What the plan means, lane by lane."""
        rows, _, tokens, _ = zip(*work, strict=True)
        least = tuple(map(sub, positions, uncertain))
        told = np.zeros(self._ledger.meant.numel() + 1, dtype=np.int64)
        told[:-1].reshape(4, -1)[:, : len(work)] = (rows, least, positions, tokens)
        self._told.fill(told, turn)

    def check(self, uses: Sequence[Use], step: StateStep, tokens: Tensor, drafts: Drafts) -> None:
        """Cursors, tokens and the places of all states. It runs beside what follows, until `settle`: for nothing here
        depends on what is chosen."""
        from ..ops.stamps import triton as checks  # where steps are uniform there is Triton
        from ..ops.twins.launch import beside

        with beside(self.found.device):
            missing = self._unused(uses)
            checks.check_cursors(self.found, self._ledger, step, tokens, drafts.drafts, missing=missing)
            for use in uses:
                self._check_places(use, self._meant)

    def settle(
        self, step: StateStep, *, drafts: Drafts, accepted: Tensor, chosen: Tensor, used: Tensor
    ) -> None:
        """As `Sanitizer.settle`, when all else has been checked. chosen [S]; used: grants, by lane"""
        from ..ops.stamps import triton as checks
        from ..ops.twins.launch import join

        join(self.found.device)
        checks.check_accepted(
            self.found,
            self._ledger,
            step,
            self._slots.held,
            drafts=drafts,
            accepted=accepted,
            chosen=chosen,
            used=used,
            nobody=NOBODY,
        )

    def settle_drafts(self, uses: Sequence[Use], here: StateStep, drafts: Tensor) -> None:
        """As `Sanitizer.settle_drafts`, of a chain. here: where the rows stood"""
        from ..ops.stamps import triton as checks

        if uses:
            checks.extend(self.found, self._ledger, here, drafts)
        for use in uses:
            self._check_places(use, Meant(here.rows, use.place.step.counts))

    def _check_places(self, use: Use, meant: Meant) -> None:
        from ..ops.stamps import triton as checks

        to = (self.found, self._ledger, meant, use.place.step, use.states, use.stamps.held)
        if use.place.pages is not None:
            checks.check_paged(*to, use.place.pages, self._page_size, first_state=len(self._slots.names))
        else:
            checks.check_recurrent(*to, self._slots.held, use.reach)

    def _unused(self, uses: Sequence[Use]) -> int:
        """Every state keeps something of each token. One that kept nothing was mistaken for another."""
        names = {name for use in uses for name in use.names}
        return next((number for number, name in enumerate(self._names) if name not in names), -1)

    def findings(self, found: Tensor, step: int, generations: Mapping[int, int]) -> list[Finding]:
        """Of `found` as it was after that step, on the host: the end of its report."""
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
            for one in read(found[-SIZE:])
            for layer, name in [self._name(one)]
        ]

    def _name(self, found: Found) -> Name:
        if found.state == NO_STATE:
            return ("-", "cursors" if found.what == CURSOR else "tokens")
        return self._names[found.state]
