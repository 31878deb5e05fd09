from __future__ import annotations

import pytest

from holdfast.cache.free_list import OwnershipError
from holdfast.cache.pages import Pages
from holdfast.ids import Row

ONE, TWO = Row(1), Row(2)


def test_a_page_has_one_writer_until_it_is_published() -> None:
    pages = Pages(2)
    page = pages.take(ONE)
    for act in (pages.publish, pages.release):
        with pytest.raises(OwnershipError):
            act(page, TWO)
    with pytest.raises(OwnershipError):
        pages.forget(page)
    pages.publish(page, ONE)
    for act in (pages.publish, pages.release):
        with pytest.raises(OwnershipError):
            act(page, ONE)
    pages.forget(page)
    assert page in pages.free


def test_a_page_that_nobody_published_is_free_at_once() -> None:
    pages = Pages(2)
    page = pages.take(ONE)
    assert dict(pages.writers) == {page: ONE}
    pages.release(page, ONE)
    assert page in pages.free and not pages.writers
    with pytest.raises(OwnershipError):
        pages.forget(page)
