"""Slots of recurrent state. Each is free, or exactly one of:

running     the `own_slot` of one row, which folds into it again and again
granted     promised to one row's future fold; what it holds is not known yet
checkpoint  immutable, labelled, at a node of the prefix tree
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ids import Row, Slot
from .chain import Label
from .free_list import FreeList, OwnershipError


class Slots:
    def __init__(self, count: int) -> None:
        self.free = FreeList(Slot, count)
        self._running: dict[Slot, Row] = {}
        self._granted: dict[Slot, Row] = {}
        self._labels: dict[Slot, Label] = {}

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_granted(self) -> int:
        return len(self._granted)

    @property
    def owners(self) -> Mapping[Slot, Row]:
        """Of slots that a row may write."""
        return {**self._running, **self._granted}

    @property
    def labels(self) -> Mapping[Slot, Label]:
        return self._labels

    def take(self, row: Row) -> Slot:
        slot = self.free.take()
        self._running[slot] = row
        return slot

    def release(self, slot: Slot, row: Row) -> None:
        self._disown(self._running, slot, row)
        self.free.release(slot)

    def grant(self, row: Row) -> Slot:
        slot = self.free.take()
        self._granted[slot] = row
        return slot

    def release_grant(self, slot: Slot, row: Row) -> None:
        self._disown(self._granted, slot, row)
        self.free.release(slot)

    def label_granted(self, slot: Slot, row: Row, label: Label) -> None:
        """The row's fold has filled the slot it was granted."""
        self._disown(self._granted, slot, row)
        self._labels[slot] = label

    def label_running(self, slot: Slot, row: Row, label: Label) -> None:
        """The row leaves, and leaves its state behind."""
        self._disown(self._running, slot, row)
        self._labels[slot] = label

    def verify(self, slot: Slot, label: Label) -> None:
        if self._labels.get(slot) != label:
            raise OwnershipError(f"slot {slot} holds {self._labels.get(slot)}, not {label}")

    def forget(self, slot: Slot) -> None:
        """A checkpoint is given up."""
        if self._labels.pop(slot, None) is None:
            raise OwnershipError(f"slot {slot} holds no checkpoint")
        self.free.release(slot)

    @staticmethod
    def _disown(owners: dict[Slot, Row], slot: Slot, row: Row) -> None:
        if owners.get(slot) != row:
            raise OwnershipError(f"slot {slot} belongs to row {owners.get(slot)}, not to row {row}")
        del owners[slot]
