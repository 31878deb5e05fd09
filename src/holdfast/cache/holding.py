"""What one row holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..ids import PAD_SLOT, Page, Row, Slot
from ..plan import Grant
from .prefix import Chain


@dataclass
class Holding:
    row: Row
    generation: int
    chain: Chain
    own_slot: Slot
    position: int
    """Tokens absorbed and certain, as the last collected result had it."""
    pages: list[Page] = field(default_factory=list)
    published: int = 0
    """How many of the pages are offered to others."""
    checkpoint: Slot = PAD_SLOT
    """A checkpoint that the row may still read; its own slot needs no reference."""
    checkpoint_at: int = 0
    grant: Grant | None = None
    last_step: int = 0
    """The latest step launched with this row."""

    def slots(self) -> Iterator[Slot]:
        held = (self.own_slot, self.checkpoint, self.grant.slot if self.grant else PAD_SLOT)
        return (slot for slot in held if slot != PAD_SLOT)
