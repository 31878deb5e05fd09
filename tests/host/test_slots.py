from __future__ import annotations

import pytest

from holdfast.cache.chain import Label
from holdfast.cache.free_list import OwnershipError
from holdfast.cache.slots import Slots
from holdfast.ids import Row

ONE, TWO = Row(1), Row(2)
LABEL = Label(4, b"four")


def test_a_running_slot_has_one_owner() -> None:
    slots = Slots(1)
    slot = slots.take(ONE)
    assert slots.num_running == 1 and dict(slots.owners) == {slot: ONE}
    with pytest.raises(OwnershipError):
        slots.release(slot, TWO)
    slots.release(slot, ONE)
    with pytest.raises(OwnershipError):
        slots.release(slot, ONE)


def test_a_slot_is_labelled_by_its_owner_and_once() -> None:
    slots = Slots(2)
    running, granted = slots.take(ONE), slots.grant(ONE)
    for label, slot in ((slots.label_granted, running), (slots.label_running, granted)):
        with pytest.raises(OwnershipError):
            label(slot, ONE, LABEL)
    for label, slot in ((slots.label_granted, granted), (slots.label_running, running)):
        with pytest.raises(OwnershipError):
            label(slot, TWO, LABEL)
        label(slot, ONE, LABEL)
        with pytest.raises(OwnershipError):
            label(slot, ONE, LABEL)
    with pytest.raises(OwnershipError):
        slots.release_grant(granted, ONE)
    with pytest.raises(OwnershipError):
        slots.release(running, ONE)
    assert (slots.num_running, slots.num_granted, len(slots.labels)) == (0, 0, 2)


def test_the_label_is_checked_when_a_checkpoint_is_used() -> None:
    slots = Slots(1)
    slot = slots.grant(ONE)
    with pytest.raises(OwnershipError):
        slots.verify(slot, LABEL)
    slots.label_granted(slot, ONE, LABEL)
    slots.verify(slot, LABEL)
    for other in (Label(4, b"other"), Label(8, b"four")):
        with pytest.raises(OwnershipError):
            slots.verify(slot, other)


def test_a_label_goes_with_its_content() -> None:
    slots = Slots(1)
    slot = slots.grant(ONE)
    with pytest.raises(OwnershipError):
        slots.forget(slot)
    slots.label_granted(slot, ONE, LABEL)
    slots.forget(slot)
    assert slots.take(TWO) == slot
    with pytest.raises(OwnershipError):
        slots.verify(slot, LABEL)
