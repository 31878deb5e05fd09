"""What a step did to state, as its operations told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ops.places import Cells, Checkpoints, Context, PagePlaces, Place, Transfer
from .kv_pool import KVPool
from .stamps import Stamps
from .state_pool import StatePool


@dataclass(frozen=True)
class Group:
    """States that were accessed by the same indices: their numbers in `stamps`."""

    what: str
    place: Place
    stamps: Stamps
    states: list[int]


class _Watch:
    """One state of one layer. `numbers` says which of the stamps of each kind of place are its."""

    __slots__ = ("_log", "numbers")

    def __init__(
        self, log: list[tuple[str, _Watch, Place]], numbers: Mapping[type, tuple[Stamps, int]]
    ) -> None:
        self._log, self.numbers = log, numbers

    def read(self, place: Place) -> None:
        self._log.append(("read", self, place))

    def wrote(self, place: Place) -> None:
        self._log.append(("write", self, place))

    def moved(self, place: Transfer) -> None:
        self._log.append(("move", self, place))


class Accesses:
    """slots, pages  the stamps of all states that have such places;  rings  by the capacity of a row's ring"""

    def __init__(self, *, slots: Stamps, rings: Mapping[int, Stamps], pages: Stamps) -> None:
        self._slots, self._rings, self._pages = slots, rings, pages
        self._log: list[tuple[str, _Watch, Place]] = []

    def watch(self, state: StatePool, kv: KVPool) -> None:
        """From now on, whatever is done to the states of these pools is told here."""
        for layer, held in state.layers.items():
            conv = {
                name: replace(c, watch=self._of(layer, f"conv.{name}", c.ring.shape[1]))
                for name, c in held.conv.items()
            }
            temporal = held.temporal
            if temporal is not None:
                temporal = replace(temporal, watch=self._of(layer, "temporal", temporal.capacity))
            state.layers[layer] = replace(held, conv=conv, temporal=temporal)
        for number, (layer, stored) in enumerate(kv.layers.items()):
            here = (self._pages, number)
            kinds = dict.fromkeys((PagePlaces, Context, Transfer), here)
            kv.layers[layer] = replace(stored, watch=_Watch(self._log, kinds))

    def _of(self, layer: str, name: str, capacity: int) -> _Watch:
        ring = self._rings[capacity]
        stamps = {Checkpoints: self._slots, Cells: ring, Transfer: ring}
        return _Watch(self._log, {kind: (s, s.names.index((layer, name))) for kind, s in stamps.items()})

    def clear(self) -> None:
        self._log.clear()

    def take(self) -> list[Group]:
        """All that was told since the last time. What was done first to a state comes first, and layers that did
        the same in the same turn stand together."""
        groups: dict[tuple[int, str, int], Group] = {}
        turns: dict[_Watch, int] = {}
        for what, watch, place in self._log:
            stamps, number = watch.numbers[type(place)]
            turn = turns.get(watch, 0)
            turns[watch] = turn + 1
            key = (turn, what, id(place))
            if key not in groups:
                groups[key] = Group(what, place, stamps, [])
            groups[key].states.append(number)
        self._log.clear()
        return [groups[key] for key in sorted(groups, key=lambda key: key[0])]
