"""A StepPlan in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ids import Page, Row, Slot
from ..plan import Grant, PageMap, RowStart, RowWork, StepPlan


@dataclass
class PlanBuilder:
    step: int
    budget: int
    """Tokens that the step may still take."""
    propose: int = 0
    """Drafts that it makes for the next."""
    starts: list[RowStart] = field(default_factory=list)
    pages: list[PageMap] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    exports: list[Grant] = field(default_factory=list)
    work: dict[Row, RowWork] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)

    def add(self, work: RowWork, position: int, uncertain: int = 0) -> None:
        self.work[work.row] = work
        self.positions.append(position)
        self.uncertain.append(uncertain)
        self.budget -= work.tokens

    def build(self, freed_slots: tuple[Slot, ...], freed_pages: tuple[Page, ...]) -> StepPlan:
        return StepPlan(
            step=self.step,
            starts=tuple(self.starts),
            pages=tuple(self.pages),
            grants=tuple(self.grants),
            exports=tuple(self.exports),
            work=tuple(self.work.values()),
            positions=tuple(self.positions),
            uncertain=tuple(self.uncertain),
            freed_slots=freed_slots,
            freed_pages=freed_pages,
            propose=self.propose,
        )
