"""What a step did to state, as its operations told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from ..ops.places import Cells, Checkpoints, Context, PagePlaces, Place, Transfer, WholeStep
from ..ops.transfer import to_device
from .kv_pool import KVPool
from .stamps import Name, Stamps
from .state_pool import StatePool


@dataclass(frozen=True)
class Group:
    """States that were accessed by the same indices: their numbers in `stamps`."""

    what: str
    place: Place
    stamps: Stamps
    states: list[int]


@dataclass(frozen=True)
class Use:
    """States that a uniform step uses alike.

    stamps  of their rings, or of pages
    states  [n, 2] on the device: their numbers there, and among slots
    reach   inputs that are read before a token; 0: all entries since the checkpoint
    """

    place: WholeStep
    stamps: Stamps
    names: tuple[Name, ...]
    states: Tensor
    reach: int


class _Watch:
    """One state of one layer. `numbers` says which of the stamps of each kind of place are its."""

    __slots__ = ("_log", "_uses", "numbers", "reach")

    def __init__(
        self,
        log: list[tuple[str, _Watch, Place]],
        uses: list[tuple[_Watch, WholeStep]],
        numbers: Mapping[type, tuple[Stamps, int]],
        reach: int = 0,
    ) -> None:
        self._log, self._uses, self.numbers, self.reach = log, uses, numbers, reach

    def used(self, place: WholeStep) -> None:
        self._uses.append((self, place))

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
        self._uses: list[tuple[_Watch, WholeStep]] = []
        self._states: dict[tuple[tuple[int, int], ...], Tensor] = {}
        """On the device: what is recorded cannot wait for a copy from the host, nor repeat it."""

    def watch(self, state: StatePool, kv: KVPool) -> None:
        """From now on, whatever is done to the states of these pools is told here."""
        for layer, held in state.layers.items():
            conv = {
                name: replace(
                    c, watch=self._of(layer, f"conv.{name}", c.ring.shape[1], reach=c.saved.shape[1])
                )
                for name, c in held.conv.items()
            }
            temporal = held.temporal
            if temporal is not None:
                temporal = replace(temporal, watch=self._of(layer, "temporal", temporal.capacity))
            state.layers[layer] = replace(held, conv=conv, temporal=temporal)
        for number, (layer, stored) in enumerate(kv.layers.items()):
            here = (self._pages, number)
            kinds = dict.fromkeys((PagePlaces, Context, Transfer), here)
            kv.layers[layer] = replace(stored, watch=_Watch(self._log, self._uses, kinds))

    def _of(self, layer: str, name: str, capacity: int, reach: int = 0) -> _Watch:
        ring = self._rings[capacity]
        stamps = {Checkpoints: self._slots, Cells: ring, Transfer: ring}
        numbers = {kind: (s, s.names.index((layer, name))) for kind, s in stamps.items()}
        return _Watch(self._log, self._uses, numbers, reach)

    def clear(self) -> None:
        self._log.clear()
        self._uses.clear()

    def take_uses(self) -> tuple[Use, ...]:
        """All that a uniform step has used since the last time."""
        alike: dict[tuple[int, int, int], list[_Watch]] = {}
        places = {id(place): place for _, place in self._uses}
        for watch, place in self._uses:
            stamps, _ = watch.numbers[Transfer]
            alike.setdefault((id(place), id(stamps), watch.reach), []).append(watch)
        self._uses.clear()
        return tuple(self._use(places[place], watches) for (place, _, _), watches in alike.items())

    def _use(self, place: WholeStep, watches: list[_Watch]) -> Use:
        stamps = watches[0].numbers[Transfer][0]
        where = [watch.numbers[Transfer][1] for watch in watches]
        slots = [watch.numbers.get(Checkpoints, (stamps, 0))[1] for watch in watches]
        numbers = tuple(zip(where, slots, strict=True))
        if numbers not in self._states:
            self._states[numbers] = to_device(numbers, stamps.held.device)
        names = tuple(stamps.names[number] for number in where)
        return Use(place, stamps, names, self._states[numbers], watches[0].reach)

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
