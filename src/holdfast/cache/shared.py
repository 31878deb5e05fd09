"""Reference counts over a free list, for ids whose content may outlive the requests that wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic

from .free_list import FreeList, Id, OwnershipError


class Shared(Generic[Id]):
    """An id is free, referenced, or idle: kept for its content when the last reference dropped.

    Idle ids are given up least recently used first, when somebody needs one.
    """

    def __init__(self, free: FreeList[Id]) -> None:
        self._free = free
        self._counts: dict[Id, int] = {}
        self._kept: set[Id] = set()
        self._idle: dict[Id, None] = {}  # oldest first

    @property
    def counts(self) -> Mapping[Id, int]:
        return self._counts

    @property
    def idle(self) -> int:
        return len(self._idle)

    def idle_ids(self) -> Iterator[Id]:
        return iter(self._idle)

    def is_idle(self, id_: Id) -> bool:
        return id_ in self._idle

    def adopt(self, id_: Id) -> None:
        """An id that was just taken gets its first reference."""
        if id_ in self._counts or id_ in self._idle or id_ in self._free:
            raise OwnershipError(f"{id_!r} has an owner already, or none at all")
        self._counts[id_] = 1

    def share(self, id_: Id) -> None:
        if id_ in self._idle:
            del self._idle[id_]
            self._counts[id_] = 1
        else:
            self._counts[id_] = self._held(id_) + 1

    def drop(self, id_: Id) -> None:
        count = self._held(id_)
        if count > 1:
            self._counts[id_] = count - 1
            return
        del self._counts[id_]
        if id_ in self._kept:
            self._idle[id_] = None
        else:
            self._free.release(id_)

    def keep(self, id_: Id) -> None:
        """From now on the content is worth keeping without a reference."""
        self._held(id_)
        self._kept.add(id_)

    def evict(self) -> Id:
        """Free the idle id that was used least recently."""
        if not self._idle:
            raise OwnershipError("nothing is idle, so nothing can be evicted")
        id_ = next(iter(self._idle))
        del self._idle[id_]
        self._kept.remove(id_)
        self._free.release(id_)
        return id_

    def _held(self, id_: Id) -> int:
        count = self._counts.get(id_)
        if count is None:
            raise OwnershipError(f"nobody holds {id_!r}")
        return count
