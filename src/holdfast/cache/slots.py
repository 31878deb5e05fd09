"""Slots of recurrent state. Each is free, or exactly one of:

running     the `own_slot` of one row, which folds into it again and again
granted     promised to one row's future fold; what it holds is not known yet
checkpoint  immutable, labelled, reference-counted
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ids import Row, Slot
from .free_list import FreeList, OwnershipError
from .prefix import Label
from .shared import Shared


class Slots:
    def __init__(self, count: int) -> None:
        self.free = FreeList(Slot, count)
        self._running: dict[Slot, Row] = {}
        self._granted: dict[Slot, Row] = {}
        self._checkpoints = Shared(self.free)
        self._labels: dict[Slot, Label] = {}

    @property
    def available(self) -> int:
        """Slots that can be had now, if need be by evicting a checkpoint."""
        return len(self.free) + self._checkpoints.idle

    def take(self, row: Row) -> Slot:
        slot = self.free.take()
        self._running[slot] = row
        return slot

    def release(self, slot: Slot, row: Row) -> None:
        self._disown(self._running, slot, row)
        self.free.release(slot)

    def take_grant(self, row: Row) -> Slot:
        slot = self.free.take()
        self._granted[slot] = row
        return slot

    def release_grant(self, slot: Slot, row: Row) -> None:
        self._disown(self._granted, slot, row)
        self.free.release(slot)

    def label(self, slot: Slot, row: Row, label: Label) -> None:
        """The row's fold has filled the slot it was granted; the row holds the first reference."""
        self._disown(self._granted, slot, row)
        self._checkpoints.adopt(slot)
        self._labels[slot] = label

    def share(self, slot: Slot, label: Label) -> None:
        if self._labels.get(slot) != label:
            raise OwnershipError(f"slot {slot} holds {self._labels.get(slot)}, not {label}")
        self._checkpoints.share(slot)

    def drop(self, slot: Slot) -> None:
        self._checkpoints.drop(slot)
        if slot in self.free:
            del self._labels[slot]

    def keep(self, slot: Slot) -> None:
        self._checkpoints.keep(slot)

    def is_idle(self, slot: Slot) -> bool:
        return self._checkpoints.is_idle(slot)

    def evict(self) -> Slot:
        slot = self._checkpoints.evict()
        del self._labels[slot]
        return slot

    def idle_ids(self) -> Iterator[Slot]:
        return self._checkpoints.idle_ids()

    def counts(self) -> dict[Slot, int]:
        """References to each slot that is neither free nor idle."""
        return dict.fromkeys((*self._running, *self._granted), 1) | dict(self._checkpoints.counts)

    @staticmethod
    def _disown(owners: dict[Slot, Row], slot: Slot, row: Row) -> None:
        if owners.get(slot) != row:
            raise OwnershipError(f"slot {slot} belongs to row {owners.get(slot)}, not to row {row}")
        del owners[slot]
