from __future__ import annotations

import pytest

from holdfast.cache.free_list import OwnershipError
from holdfast.cache.prefix import Label
from holdfast.cache.slots import Slots
from holdfast.ids import Row

ONE, TWO = Row(1), Row(2)
LABEL = Label(4, b"four")


def test_a_running_slot_has_one_owner() -> None:
    slots = Slots(1)
    slot = slots.take(ONE)
    with pytest.raises(OwnershipError):
        slots.release(slot, TWO)
    slots.release(slot, ONE)
    with pytest.raises(OwnershipError):
        slots.release(slot, ONE)


def test_only_a_granted_slot_is_labelled() -> None:
    slots = Slots(2)
    running, granted = slots.take(ONE), slots.take_grant(ONE)
    with pytest.raises(OwnershipError):
        slots.label(running, ONE, LABEL)
    with pytest.raises(OwnershipError):
        slots.label(granted, TWO, LABEL)
    slots.label(granted, ONE, LABEL)
    with pytest.raises(OwnershipError):
        slots.label(granted, ONE, LABEL)
    with pytest.raises(OwnershipError):
        slots.release_grant(granted, ONE)


def test_the_label_is_checked_when_a_checkpoint_is_used() -> None:
    slots = Slots(1)
    slot = slots.take_grant(ONE)
    with pytest.raises(OwnershipError):
        slots.share(slot, LABEL)
    slots.label(slot, ONE, LABEL)
    slots.share(slot, LABEL)
    with pytest.raises(OwnershipError):
        slots.share(slot, Label(4, b"other"))
    assert slots.counts() == {slot: 2}


def test_a_label_goes_with_its_content() -> None:
    slots = Slots(1)
    slot = slots.take_grant(ONE)
    slots.label(slot, ONE, LABEL)
    slots.drop(slot)  # not kept: free at once
    assert slots.take(TWO) == slot
    slots.release(slot, TWO)
    slot = slots.take_grant(ONE)
    slots.label(slot, ONE, LABEL)
    slots.keep(slot)
    slots.drop(slot)
    assert slots.available == 1 and slots.is_idle(slot)
    assert slots.evict() == slot
    with pytest.raises(OwnershipError):
        slots.share(slot, LABEL)
