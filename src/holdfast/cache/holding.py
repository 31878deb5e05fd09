"""What one row holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..ids import PAD_SLOT, Page, Row, Slot
from ..plan import Grant
from ..request import Request
from .radix import Node


@dataclass
class Reading:
    """A checkpoint that the row may still read. `node` is None if another of the same content is in the tree."""

    slot: Slot
    position: int
    node: Node | None


@dataclass
class Holding:
    row: Row
    generation: int
    request: Request
    own_slot: Slot
    position: int
    """Tokens absorbed and certain, as the last collected result had it."""
    base: int
    """Where the checkpoint stands that it reads, as the last collected result had it."""
    pages: list[Page] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)
    """The tree's nodes for the first of its pages. They have other pages if others computed the same before."""
    reading: Reading | None = None
    grant: Grant | None = None
    """For a window, until the device reports it."""
    exports: list[Grant] = field(default_factory=list)
    """Of runs in flight."""
    left: Node | None = None
    """The last checkpoint that its answer left behind; the next one replaces it."""
    publishes: bool = True
    """False after a reset: what it computed before belongs to the past."""

    def grants(self) -> Iterator[Grant]:
        """All that are outstanding."""
        return (grant for grant in (self.grant, *self.exports) if grant)

    def slots(self) -> Iterator[Slot]:
        read = self.reading.slot if self.reading else PAD_SLOT
        held = (self.own_slot, read, *(grant.slot for grant in self.grants()))
        return (slot for slot in held if slot != PAD_SLOT)

    def all_pages(self) -> Iterator[Page]:
        yield from (node.page for node in self.path)
        yield from self.writable_pages()

    def writable_pages(self) -> Iterator[Page]:
        shared = len(self.path)
        yield from (p for p, node in zip(self.pages, self.path, strict=False) if p != node.page)
        yield from self.pages[shared:]
