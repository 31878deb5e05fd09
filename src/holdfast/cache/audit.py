"""Does every id have exactly the owners that the books say? Cheap enough to ask whenever nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .free_list import FreeList, Id


@dataclass(frozen=True)
class Census:
    """One namespace. Every id is free, idle, held by a running request or waiting for a step in flight."""

    total: int
    free: int
    idle: int
    held: int
    waiting: int
    leaked: int
    """Ids with more references than holders: they would never come back."""
    double_owned: int
    """Ids with more holders than references, or free or idle while held: they would come back too soon."""

    @property
    def unaccounted(self) -> int:
        return abs(self.total - self.free - self.idle - self.held - self.waiting)


@dataclass(frozen=True)
class Audit:
    rows: Census
    slots: Census
    pages: Census
    tree: tuple[str, ...] = ()
    """What is wrong with the prefix tree."""

    @property
    def leaked(self) -> int:
        return self.rows.leaked + self.slots.leaked + self.pages.leaked

    @property
    def double_owned(self) -> int:
        return self.rows.double_owned + self.slots.double_owned + self.pages.double_owned

    @property
    def unaccounted(self) -> int:
        return self.rows.unaccounted + self.slots.unaccounted + self.pages.unaccounted

    @property
    def clean(self) -> bool:
        return not (self.leaked or self.double_owned or self.unaccounted or self.tree)


def take_census(
    free: FreeList[Id],
    counts: Mapping[Id, int],
    held: Iterable[Id],
    waiting: Iterable[Id],
    idle: Iterable[Id] = (),
) -> Census:
    """Compare the books (`free`, `idle`, reference `counts`) with what requests actually hold."""
    by_running, by_waiting, cached = Counter(held), Counter(waiting), set(idle)
    holders = by_running + by_waiting
    known = set(free) | cached | set(counts)
    lost = free.total - len(known)
    return Census(
        total=free.total,
        free=len(free),
        idle=len(cached),
        held=len(by_running),
        waiting=len(by_waiting.keys() - by_running.keys()),
        leaked=lost + sum(count > holders[id_] for id_, count in counts.items()),
        double_owned=sum(
            count > counts.get(id_, 0) or id_ in free or id_ in cached for id_, count in holders.items()
        ),
    )
