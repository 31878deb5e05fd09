from __future__ import annotations

import pytest

from holdfast.cache.free_list import FreeList, OwnershipError
from holdfast.ids import Page, Row


def test_hands_out_lowest_first_and_never_zero() -> None:
    free = FreeList(Row, 3)
    assert [free.take(), free.take(), free.take()] == [1, 2, 3]
    free.release(Row(3))
    free.release(Row(1))
    assert list(free) == [1, 3]
    assert free.take() == 1
    assert isinstance(free.take(), Row)


def test_a_wish_is_granted_if_it_is_free() -> None:
    free = FreeList(Page, 6)
    assert [free.take(Page(4)), free.take(Page(5)), free.take(Page(5)), free.take(Page(7))] == [4, 5, 1, 2]
    assert list(free) == [3, 6] and len(free) == 2
    for _ in range(3):
        free.release(Page(4))
        assert free.take(Page(4)) == 4
    free.release(Page(1))
    assert list(free) == [1, 3, 6]
    assert [free.take() for _ in range(3)] == [1, 3, 6] and not free


def test_refuses_what_it_did_not_hand_out() -> None:
    free = FreeList(Page, 2)
    page = free.take()
    free.release(page)
    with pytest.raises(OwnershipError, match="twice"):
        free.release(page)
    for stranger in (Page(0), Page(3)):
        with pytest.raises(OwnershipError, match="not one of"):
            free.release(stranger)


def test_what_was_freed_is_told_once_though_it_may_be_taken_again() -> None:
    free = FreeList(Row, 3)
    for _ in range(3):
        free.take()
    free.release(Row(2))
    free.release(Row(1))
    assert free.take() == 1
    assert free.take_freed() == (2, 1)
    assert free.take_freed() == ()


def test_empty() -> None:
    free = FreeList(Page, 0)
    assert not free
    with pytest.raises(OwnershipError, match="taken"):
        free.take()
