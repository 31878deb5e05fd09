"""Which page and which checkpoint hold what: a flat table, by label.

A label names content by what led to it, so equal labels mean equal content whoever computed it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from ..ids import PAD_SLOT, Page, Slot
from .free_list import Id


@dataclass(frozen=True)
class Label:
    """The first `position` tokens, by their chain hash."""

    position: int
    chain: bytes


ROOT = Label(0, b"")


@dataclass(frozen=True)
class Match:
    """How far a prompt is known already."""

    label: Label = ROOT
    """What the checkpoint must say of itself."""
    slot: Slot = PAD_SLOT
    pages: tuple[Page, ...] = ()
    """KV up to the resumable length, and no further: what lies beyond is recomputed, into other pages."""
    kv_len: int = 0
    """KV was found this far; there may be no checkpoint so deep."""

    @property
    def resumable_len(self) -> int:
        return self.label.position


COLD = Match()


class Chain:
    """Labels of one sequence of tokens at its page boundaries, each hashed once. The sequence may grow."""

    def __init__(self, tokens: Sequence[int], page_size: int) -> None:
        self._tokens = tokens
        self._page_size = page_size
        self._labels = [ROOT]

    def label(self, boundary: int) -> Label:
        """The label after `boundary` whole pages."""
        while len(self._labels) <= boundary:
            last = self._labels[-1]
            end = last.position + self._page_size
            if end > len(self._tokens):
                raise ValueError(f"a label at {end} needs {end} tokens; {len(self._tokens)} are known")
            page = array("q", self._tokens[last.position : end]).tobytes()
            digest = hashlib.blake2b(page, digest_size=16, key=last.chain).digest()
            self._labels.append(Label(end, digest))
        return self._labels[boundary]


class _Table(Generic[Id]):
    """One id per label, one label per id."""

    def __init__(self) -> None:
        self._ids: dict[Label, Id] = {}
        self._labels: dict[Id, Label] = {}

    def find(self, label: Label) -> Id | None:
        return self._ids.get(label)

    def add(self, label: Label, id_: Id) -> bool:
        """False if another id has this content already, which is then the one to share."""
        if label in self._ids:
            return False
        self._ids[label] = id_
        self._labels[id_] = label
        return True

    def forget(self, id_: Id) -> None:
        del self._ids[self._labels.pop(id_)]


class PrefixIndex:
    """Holds no references: whoever evicts a page or a checkpoint also forgets it here."""

    def __init__(self, page_size: int, *, recurrent: bool) -> None:
        self._page_size = page_size
        self._recurrent = recurrent
        self.pages: _Table[Page] = _Table()
        self.checkpoints: _Table[Slot] = _Table()

    def match(self, tokens: Sequence[int], limit: int) -> Match:
        """The deepest position, at most `limit`, that has both its checkpoint and all KV before it."""
        chain = Chain(tokens, self._page_size)
        pages: list[Page] = []
        label, slot = ROOT, PAD_SLOT
        for boundary in range(1, limit // self._page_size + 1):
            here = chain.label(boundary)
            page = self.pages.find(here)
            if page is None:
                break
            pages.append(page)
            checkpoint = self.checkpoints.find(here) if self._recurrent else PAD_SLOT
            if checkpoint is not None:
                label, slot = here, checkpoint
        return Match(
            label=label,
            slot=slot,
            pages=tuple(pages[: label.position // self._page_size]),
            kv_len=len(pages) * self._page_size,
        )
