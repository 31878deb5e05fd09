"""Pages of KV. A page is free, one row's to write, or a node's of the prefix tree, where nobody writes it again."""

from __future__ import annotations

from collections.abc import Mapping

from ..ids import Page, Row
from .free_list import FreeList, OwnershipError


class Pages:
    def __init__(self, count: int) -> None:
        self.free = FreeList(Page, count)
        self._writers: dict[Page, Row] = {}

    @property
    def writers(self) -> Mapping[Page, Row]:
        return self._writers

    def take(self, row: Row, wish: Page | None = None) -> Page:
        page = self.free.take(wish)
        self._writers[page] = row
        return page

    def publish(self, page: Page, row: Row) -> None:
        """The tree has it from now on."""
        if self._writers.get(page) != row:
            raise OwnershipError(f"page {page} belongs to row {self._writers.get(page)}, not to row {row}")
        del self._writers[page]

    def release(self, page: Page, row: Row) -> None:
        self.publish(page, row)
        self.free.release(page)

    def forget(self, page: Page) -> None:
        """The tree gives it up."""
        if page in self._writers:
            raise OwnershipError(f"page {page} is not the tree's to give up")
        self.free.release(page)
