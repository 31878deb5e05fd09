"""Pages of KV. A page has one writer; once published, any number of requests read it."""

from __future__ import annotations

from ..ids import Page
from .free_list import FreeList
from .shared import Shared


class Pages(Shared[Page]):
    def __init__(self, count: int) -> None:
        self.free = FreeList(Page, count)
        super().__init__(self.free)

    @property
    def available(self) -> int:
        """Pages that can be had now, if need be by evicting."""
        return len(self.free) + self.idle

    def take(self) -> Page:
        page = self.free.take()
        self.adopt(page)
        return page
