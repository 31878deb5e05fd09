"""What comparing a step with its plan has shown, read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..corruption import Finding
from .recorded import RecordedChecks
from .stamps import Name, position_of


@dataclass(frozen=True)
class Check:
    """Places compared in one go. Element i of each tensor is one of them; content also differs by state.

    rows, place, expected  n elements, in whatever shape; expected is a position
    found                  [states, n]: stamps; None if it is not the content that is wrong
    wrong                  [states, n], or [n] for all
    """

    what: str
    names: Sequence[Name]
    rows: Tensor
    place: Tensor
    expected: Tensor
    found: Tensor | None
    wrong: Tensor

    def row(self, i: int) -> int:
        return int(self.rows.flatten()[i])

    def finding(self, state: int, i: int, step: int, generations: Mapping[int, int]) -> Finding:
        layer, name = self.names[state]
        row = self.row(i)
        return Finding(
            step=step,
            what=self.what,
            layer=layer,
            state=name,
            row=row,
            generation=generations.get(row, 0),
            place=int(self.place.flatten()[i]),
            expected=int(self.expected.flatten()[i]),
            found=None if self.found is None else position_of(int(self.found[state, i])),
        )


class Inspection:
    def __init__(self, step: int, generations: Mapping[int, int], checks: Sequence[Check]) -> None:
        self._step, self._checks = step, checks
        self._generations = dict(generations)  # as they were: a row may have another tenant when this is read
        self._bad = torch.cat([check.wrong.view(-1) for check in checks]).any() if checks else None

    def findings(self) -> tuple[Finding, ...]:
        """The first of each check and row. Waits for the device."""
        found: dict[tuple[str, int], Finding] = {}
        for check in self._checks if self._bad is not None and bool(self._bad) else ():
            for state, i in check.wrong.view(-1, max(1, check.place.numel())).nonzero().tolist():
                if (key := (check.what, check.row(i))) not in found:
                    found[key] = check.finding(state, i, self._step, self._generations)
        return tuple(found.values())


class RecordedInspection(Inspection):
    """Of a uniform step, whose own checks were made with it. Others are of what came before it."""

    def __init__(
        self,
        step: int,
        generations: Mapping[int, int],
        checks: Sequence[Check],
        recorded: RecordedChecks,
        told: Callable[[], Tensor],
    ) -> None:
        super().__init__(step, generations, checks)
        self._recorded, self._told = recorded, told

    def findings(self) -> tuple[Finding, ...]:
        own = self._recorded.findings(self._told(), self._step, self._generations)
        first = {(finding.what, finding.row): finding for finding in reversed(own)}
        return (*super().findings(), *first.values())
