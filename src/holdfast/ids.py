"""The three namespaces. An id of one kind is never an id of another, and 0 is padding in each.

Row   a running request's index in the device tables (cursors, journals, tokens, page table)
Slot  one checkpoint of recurrent state, every recurrent layer's part of it
Page  one page of KV, every attention layer's part of it
"""

from __future__ import annotations


class Row(int):
    __slots__ = ()


class Slot(int):
    __slots__ = ()


class Page(int):
    __slots__ = ()


PAD_ROW, PAD_SLOT, PAD_PAGE = Row(0), Slot(0), Page(0)
