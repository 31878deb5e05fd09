"""The free ids of one namespace, handed out lowest first: the same requests get the same ids in every run."""

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
        self._heap = [kind(number) for number in range(1, count + 1)]
        self._free = set(self._heap)

    @property
    def total(self) -> int:
        return self._count

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._free

    def __iter__(self) -> Iterator[Id]:
        return iter(sorted(self._heap))

    def take(self) -> Id:
        if not self._heap:
            raise OwnershipError(f"all {self._count} ids of {self._kind.__name__} are taken")
        id_ = heapq.heappop(self._heap)
        self._free.remove(id_)
        return id_

    def release(self, id_: Id) -> None:
        if not 1 <= id_ <= self._count:
            raise OwnershipError(f"{self._kind.__name__} {id_} is not one of 1 to {self._count}")
        if id_ in self._free:
            raise OwnershipError(f"{self._kind.__name__} {id_} is given back twice")
        heapq.heappush(self._heap, id_)
        self._free.add(id_)
