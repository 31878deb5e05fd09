from __future__ import annotations

import pytest

from holdfast.cache.free_list import OwnershipError
from holdfast.cache.pages import Pages
from holdfast.ids import Page


def test_a_page_is_free_again_with_its_last_reference() -> None:
    pages = Pages(2)
    page = pages.take()
    pages.share(page)
    pages.drop(page)
    assert page not in pages.free
    pages.drop(page)
    assert page in pages.free
    with pytest.raises(OwnershipError):
        pages.drop(page)


def test_kept_pages_stay_idle_until_evicted_oldest_first() -> None:
    pages = Pages(3)
    held = [pages.take() for _ in range(3)]
    for page in held:
        pages.keep(page)
    for page in (held[1], held[2], held[0]):
        pages.drop(page)
    assert len(pages.free) == 0 and pages.available == 3
    pages.share(held[1])  # used again: no longer the oldest, nor idle
    assert pages.available == 2
    pages.drop(held[1])
    assert [pages.evict(), pages.evict(), pages.evict()] == [held[2], held[0], held[1]]
    with pytest.raises(OwnershipError):
        pages.evict()


def test_an_evicted_page_is_not_kept_for_its_next_owner() -> None:
    pages = Pages(1)
    page = pages.take()
    pages.keep(page)
    pages.drop(page)
    pages.evict()
    assert pages.take() == page
    pages.drop(page)
    assert pages.idle == 0 and len(pages.free) == 1


def test_nobody_shares_or_keeps_what_nobody_holds() -> None:
    pages = Pages(2)
    for act in (pages.share, pages.keep, pages.drop, pages.adopt):
        with pytest.raises(OwnershipError):
            act(Page(1))
