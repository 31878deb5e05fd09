"""The free ids of one namespace, handed out lowest first if nobody wishes for another: the same requests get the same
ids in every run."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Id = TypeVar("Id", bound=int)


class OwnershipError(RuntimeError):
    """An id was taken, shared, labelled or given back against the rules: a bug, never a user's doing."""


class FreeList(Generic[Id]):
    """Ids 1 to count. 0 is padding and is never handed out."""

    def __init__(self, kind: type[Id], count: int) -> None:
        self._kind = kind
        self._count = count
        self._taken_ever = 0  # those above were never handed out, and need not be listed
        self._returned: set[Id] = set()
        self._heap: list[Id] = []  # of those, and of some that were wished for since
        self._in_heap: set[Id] = set()
        self._freed: list[Id] = []

    @property
    def total(self) -> int:
        return self._count

    def __len__(self) -> int:
        return self._count - self._taken_ever + len(self._returned)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._returned or (isinstance(id_, int) and self._taken_ever < id_ <= self._count)

    def __iter__(self) -> Iterator[Id]:
        yield from sorted(self._returned)
        yield from (self._kind(number) for number in range(self._taken_ever + 1, self._count + 1))

    def take(self, wish: Id | None = None) -> Id:
        """`wish` if it is free, else the lowest."""
        if wish is not None and wish in self:
            while self._taken_ever < wish:
                self._taken_ever += 1
                self._list(self._kind(self._taken_ever))
            self._returned.remove(wish)
            return wish
        while self._heap:
            id_ = heapq.heappop(self._heap)
            self._in_heap.remove(id_)
            if id_ in self._returned:
                self._returned.remove(id_)
                return id_
        if self._taken_ever == self._count:
            raise OwnershipError(f"all {self._count} ids of {self._kind.__name__} are taken")
        self._taken_ever += 1
        return self._kind(self._taken_ever)

    def release(self, id_: Id) -> None:
        if not 1 <= id_ <= self._count:
            raise OwnershipError(f"{self._kind.__name__} {id_} is not one of 1 to {self._count}")
        if id_ in self:
            raise OwnershipError(f"{self._kind.__name__} {id_} is given back twice")
        self._list(id_)
        self._freed.append(id_)

    def _list(self, id_: Id) -> None:
        self._returned.add(id_)
        if id_ not in self._in_heap:
            self._in_heap.add(id_)
            heapq.heappush(self._heap, id_)

    def take_freed(self) -> tuple[Id, ...]:
        """Those given back since this was last asked, though some may be taken again."""
        freed, self._freed = tuple(self._freed), []
        return freed
