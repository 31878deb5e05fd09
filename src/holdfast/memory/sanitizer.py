"""StateSan: every access to state is compared with what the plan meant.

Operations tell, by the very indices they used, which places they read and wrote, for which row and at which position
(`ops.places`). Telling only appends to a list. When the step is done, `settle` compares in a few batched operations:
a read must find the stamp of the row's own tokens at that position, a write must be to a place that the row owns.
Layers that used the same indices are compared together, so the cost hardly grows with their number; a layer that
used others is compared by itself, and that is how a wrong slot in one layer is found.

What the plan meant comes from the plan: rows, their tokens and where they stand, slots and pages given and freed.
Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from ..config import Limits, pages_for
from ..ops.places import Cells, Checkpoints, Context, PagePlaces, Transfer
from ..ops.step import StateStep
from ..ops.transfer import to_device
from ..plan import Grant, PageMap, RowStart, RowWork, StepPlan
from .accesses import Accesses, Group, Use
from .inspection import Check, Inspection, RecordedInspection
from .kv_pool import KVPool
from .poison import Poison
from .recorded import NOBODY, RecordedChecks
from .stamps import VOID, Chains, Name, Stamps
from .state_pool import StatePool


@dataclass(frozen=True)
class Done:
    """A step, as the runner made it from its plan.

    work               of each lane;  most, least  where the plan means it to stand
    tokens, places     [T] of the flat batch; a place is a position, but for the nodes of a tree
    choosers           lanes that chose tokens;  chosen  [C, D + 1]: after the last known token, and each draft
    accepted           [C]: drafts that are certain now
    granted, used      by lane: the grant that was outstanding; was it used
    exports            those that the step has filled
    """

    number: int
    step: StateStep
    work: tuple[RowWork, ...]
    most: tuple[int, ...]
    least: tuple[int, ...]
    tokens: Tensor
    places: Tensor
    choosers: tuple[int, ...]
    chosen: Tensor
    accepted: Tensor
    granted: Mapping[int, Grant]
    used: Tensor
    exports: tuple[Grant, ...]


@dataclass(frozen=True)
class _Places:
    """One element for each place, in whatever shape: whose it should be, what it should hold. index is [n]."""

    rows: Tensor
    position: Tensor
    index: Tensor


def stamp_bytes(places: int) -> int:
    """Of a page, or a slot: one for each of its places, and its owner."""
    return 8 * (places + 1)


def one_row(limits: Limits) -> Limits:
    """Of pools for a single request, of any length."""
    slots = min(1, limits.num_slots)
    return replace(limits, max_num_seqs=1, num_slots=slots, num_checkpoints=0, num_pages=limits.pages_per_row)


class Sanitizer:
    """The runner calls `apply` before a step, `settle` after it, and `settle_drafts` when more has been drafted."""

    def __init__(self, state: StatePool, kv: KVPool, limits: Limits, *, poison: bool = False) -> None:
        device, rows = kv.table.device, limits.max_num_seqs
        self._device, self._page_size, self._grid = device, limits.page_size, limits.fold_every
        self._drafting_room = limits.drafting_room
        self._chains = Chains(rows, limits.pages_per_row * limits.page_size, device)
        self._tickets = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self._stand = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        """Of each row: tokens absorbed and certain. How many drafts were accepted, no plan knows."""
        self._span = torch.zeros(2, rows + 1, dtype=torch.int64, device=device)
        """Of each row: the tokens that this step may write, from .. to; none, if it is not of this step."""
        self._slot_owner = torch.full((limits.num_slots + 1,), NOBODY, device=device)
        self._page_owner = torch.full((limits.num_pages + 1,), NOBODY, device=device)
        self._generations: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        """How many pages of a row are not its own."""
        self._checks: list[Check] = []
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        self._absorbed = _Places(nothing, nothing, nothing)
        """The tokens of this step."""

        pages = [(layer, "kv") for layer in kv.layers]
        self._pages = Stamps.void(pages, (limits.num_pages + 1) * limits.page_size, device)
        capacities = {
            (layer, name): capacity
            for layer, held in state.layers.items()
            for name, capacity in held.capacities().items()
        }
        self._slots = Stamps.void(capacities, limits.num_slots + 1, device)
        self._rings = {
            capacity: Stamps.void(
                [name for name, its in capacities.items() if its == capacity], (rows + 1) * capacity, device
            )
            for capacity in sorted(set(capacities.values()))
        }
        self._poison = Poison(state, kv) if poison else None
        self._accesses = Accesses(slots=self._slots, rings=self._rings, pages=self._pages)
        self._accesses.watch(state, kv)
        self.recorded = RecordedChecks(
            slots=self._slots,
            pages=self._pages,
            page_size=limits.page_size,
            stand=self._stand,
            tickets=self._tickets,
            slot_owner=self._slot_owner,
            page_owner=self._page_owner,
            chain=self._chains.table,
            keys=self._chains.keys,
        )
        """Of uniform steps."""

    # --- before a step: what the plan says ---

    def apply(self, plan: StepPlan) -> None:
        self._accesses.clear()  # of a step that broke off
        self._checks = []
        self._free(plan)
        if self._poison:
            self._poison.apply(plan)
        for start in plan.starts:
            self._start(start)
        self._map(plan.pages)
        for grant in (*plan.grants, *plan.exports):
            self._slot_owner[grant.slot] = self._tickets[grant.row]
        self.recorded.promise(plan.grants)
        for start in plan.starts:
            if start.base:
                self._check_resumed(start, [p.page for p in plan.pages if p.row == start.row])

    def _free(self, plan: StepPlan) -> None:
        if plan.freed_slots:
            slots = self._tensor(plan.freed_slots)
            self._slots.clear(slots, 1)
            self._slot_owner[slots] = NOBODY
        if plan.freed_pages:
            pages = self._tensor(plan.freed_pages)
            self._pages.clear(pages, self._page_size)
            self._page_owner[pages] = NOBODY

    def _start(self, start: RowStart) -> None:
        self._generations[start.row] = start.generation
        self._shared[start.row] = start.base // self._page_size
        self._chains.start(start.row, start.tokens)
        self._stand[start.row] = start.base
        self._tickets[start.row] = start.generation * len(self._tickets) + start.row
        if start.own_slot:
            self._slot_owner[start.own_slot] = self._tickets[start.row]
        for capacity, stamps in self._rings.items():
            stamps.clear(start.row, capacity)

    def _map(self, maps: tuple[PageMap, ...]) -> None:
        if maps:
            told = [(p.page, p.row, p.ordinal < self._shared[p.row]) for p in maps]
            pages, rows, shared = self._tensor(told).unbind(1)
            self._page_owner[pages] = self._tickets[rows].masked_fill(shared.bool(), NOBODY)

    def _check_resumed(self, start: RowStart, pages: list[int]) -> None:
        """The labels that the host went by: the checkpoint, and the pages before it."""
        if start.read_slot:
            row, base, slot = (self._tensor([x]) for x in (start.row, start.base, start.read_slot))
            self._compare("resume", self._slots, self._slots.all, _Places(row, base, slot))
        held = self._tensor(pages[: self._pages_for(start.base)])
        self._compare_contexts("resume", self._pages.all, [Context(start.row, start.base, held)])

    # --- after it: what was done ---

    def settle(self, done: Done) -> None:
        """Compare all that the step told, and stamp what it wrote."""
        self._check_cursors(done)
        groups = self._accesses.take()
        for group in groups:
            if group.what == "write":
                self._check_write(group)
            elif group.what == "read" and not isinstance(group.place, Context):
                self._check_read(group)
        self._check_contexts(groups, done)
        self._check_all_wrote(groups, done)
        self._check_published(done)
        self._check_accepted(
            done
        )  # after the writes: it is drafts that were written, not what was chosen instead
        for group in groups:
            if isinstance(group.place, Transfer):
                self._check_move(group, group.place)

    def uses(self) -> tuple[Use, ...]:
        """What a uniform step has told since the last time."""
        return self._accesses.take_uses()

    def settle_drafts(
        self, rows: Tensor, position: Tensor, drafts: Tensor, parents: Tensor | None = None
    ) -> None:
        """The same for what a drafter did to make drafts [N, depth], ahead of where rows [N] stand. `parents` of a
        tree are the nodes that they follow, where 0 is the row's last token."""
        groups = self._accesses.take()
        if not groups:
            return
        for place, tokens in enumerate(drafts.unbind(1)):
            above = None if parents is None else position + 1 + parents[:, place]
            self._chains.extend(rows, position + 1 + place, tokens, above)
        self._span.zero_()
        # the last token, and as many drafts as may be asked for: a block has places for all of them
        self._span[:, rows] = torch.stack((position, position + self._drafting_room))
        self._absorbed = _Places(rows[:0], rows[:0], rows[:0])
        for group in groups:
            if group.what == "write" and isinstance(group.place, Checkpoints):
                self._blame(
                    "write", self._names(group), group.place.rows.tolist(), 0
                )  # nothing may be folded
            elif group.what == "write":
                self._check_write(group)
            elif isinstance(group.place, Context):
                self._compare_contexts("read", group.states, [group.place])
            else:
                self._check_read(group)

    def inspection(
        self, number: int, further: Sequence[Check] = (), told: Callable[[], Tensor] | None = None
    ) -> Inspection:
        """Of the step that was settled. `further` checks are reported with it. `told` waits for what a uniform step
        has found, and ends with it."""
        padding = [self._poison.check_padding()] if self._poison else []
        checks = [*self._checks, *padding, *further]
        if told is None:
            return Inspection(number, self._generations, checks)
        return RecordedInspection(number, self._generations, checks, self.recorded, told)

    def _check_cursors(self, done: Done) -> None:
        """Does every lane stand where the plan means it to, and take the tokens that it means?"""
        work, step = done.work, done.step
        rows, most, least, tokens = self._tensor(
            [
                [w.row for w in work],
                done.most,
                done.least,
                [w.tokens for w in work],
            ]
        )
        begin = self._stand[rows]
        self._stand[rows] = begin + tokens
        self._span.zero_()
        self._span[:, rows] = torch.stack((begin, begin + tokens))
        lost = (step.rows != rows) | (step.position != begin) | (begin > most) | (begin < least)
        self._add("cursor", [("-", "cursors")], _Places(rows, begin, step.rows.clone()), None, lost)
        owners = rows.repeat_interleave(tokens)
        self._absorbed = _Places(owners, done.places + 1, owners)
        above = _above(step, done.places)
        for drafts in self._draft_places(work):  # the device knows tokens that no plan has sent
            self._chains.extend(owners[drafts], done.places[drafts], done.tokens[drafts], above[drafts])
        other = self._chains.differ(owners, done.places, done.tokens, above)
        self._add("read", [("-", "tokens")], self._absorbed, None, other)

    def _draft_places(self, work: Sequence[RowWork]) -> list[Tensor]:
        """In the flat batch: those of the first draft of every lane, of the second, and so on."""
        ends = list(accumulate(w.tokens for w in work))
        most = max((w.window.drafts for w in work), default=0)
        return [
            self._tensor(
                [end - w.window.drafts + n for w, end in zip(work, ends, strict=True) if n < w.window.drafts]
            )
            for n in range(most)
        ]

    def _check_accepted(self, done: Done) -> None:
        """Every draft that was accepted is what was chosen after the one before it; and the row stands behind it now.
        Whether drafts are a chain or a tree, they are looked up by the texts that lead to them."""
        if not done.choosers:
            return
        chose = [done.work[lane] for lane in done.choosers]
        rows, drafts = self._tensor([[w.row for w in chose], [w.window.drafts for w in chose]])
        known, accepted = self._stand[rows] - drafts, done.accepted
        text, wrong = self._chains.after(self._chains.at(rows, known), done.chosen[:, 0]), accepted > drafts
        if (most := done.chosen.shape[1] - 1) > 0:  # before anything is replaced
            node = torch.arange(most + 1, device=self._device)
            nodes = self._chains.at(rows[:, None], known[:, None] + node)
            nodes.masked_fill_(node > drafts[:, None], VOID)
        self._chains.replace(rows, known + 1, text)
        for count in range(1, most + 1):
            found = nodes == text[:, None]
            wrong = wrong | ((accepted >= count) & ~found.any(1))
            at = found.long().argmax(1)[:, None]
            text = self._chains.after(nodes.gather(1, at), done.chosen.gather(1, at))[:, 0]
            self._chains.replace(rows, known + count + 1, text, accepted >= count)
        self._stand[rows] = known + accepted
        self._add("accept", [("-", "tokens")], _Places(rows, known + accepted, rows), None, wrong)

    def _check_read(self, group: Group) -> None:
        place = group.place
        if isinstance(place, Checkpoints):
            wrong = self._compare("read", group.stamps, group.states, _of_checkpoints(place))
            wrong.index_fill_(1, place.cold, False)
        elif isinstance(place, Cells):
            wrong = self._compare("read", group.stamps, group.states, _of_cells(place))
            if place.empty is not None:
                wrong.index_fill_(1, place.empty, False)

    def _check_write(self, group: Group) -> None:
        place = group.place
        if isinstance(place, Checkpoints):
            places = _of_checkpoints(place)
            foreign = self._slot_owner[place.slots] != self._tickets[place.rows]
            wrong = foreign | (place.position > self._span[1, place.rows])
        else:
            if isinstance(place, Cells):
                assert place.count == 1
                places, outside = self._of_this_step(place.rows, place.first, place.where)
            else:
                assert isinstance(place, PagePlaces)
                index = place.where(self._page_size)
                places, outside = self._of_this_step(place.rows, place.position, index)
            wrong = self._foreign(group.stamps, places)
            wrong = wrong if outside is None else wrong | outside
        self._add("write", self._names(group), places, None, wrong)
        group.stamps.write(group.states, places.index, self._chains.at(places.rows, places.position))

    def _check_move(self, group: Group, along: Transfer) -> None:
        """What was moved is what belongs where it is now: a place of the row's own that this step has absorbed."""
        begin, end = self._span[:, along.rows]
        places = _Places(along.rows, along.target + 1, along.put)
        wrong = self._foreign(group.stamps, places) | (along.target < begin) | (along.target >= end)
        self._add("move", self._names(group), places, None, wrong)
        group.stamps.write(group.states, along.put, group.stamps.read(group.states, along.taken))
        self._compare("move", group.stamps, group.states, places)

    def _foreign(self, stamps: Stamps, places: _Places) -> Tensor:
        """Which are not where the row keeps that position, in its ring or in a page of its own?"""
        if stamps is self._pages:
            page, offset = places.index // self._page_size, places.index % self._page_size
            owner = self._page_owner[page] != self._tickets[places.rows]
            return owner | (offset != (places.position - 1) % self._page_size)
        capacity = stamps.held.shape[1] // len(self._tickets)
        return places.index != places.rows * capacity + (places.position - 1) % capacity

    def _check_contexts(self, groups: list[Group], done: Done) -> None:
        """Those that were read by the same layers in one go; and each must be all of what the row has."""
        standing = zip(done.work, done.least, done.most, strict=True)
        begins = {int(w.row): range(least, most + 1) for w, least, most in standing}
        tokens = {int(w.row): w.tokens for w in done.work}
        contexts: dict[tuple[int, ...], list[Context]] = {}
        for group in groups:
            if isinstance(place := group.place, Context):
                contexts.setdefault(tuple(group.states), []).append(place)
                begin = place.length - tokens.get(place.row, 0)
                whole = len(place.pages) == self._pages_for(place.length)
                if begin not in begins.get(place.row, ()) or not whole:
                    self._blame("read", self._names(group), [place.row], place.length)
        for states, several in contexts.items():
            self._compare_contexts("read", states, several)

    def _check_all_wrote(self, groups: list[Group], done: Done) -> None:
        """Every state keeps something of its last tokens. One that kept nothing was mistaken for another."""
        standing = zip(done.work, done.most, strict=True)
        rows = [int(w.row) for w, most in standing if w.tokens and (most + w.tokens) % self._grid]
        for stamps in (*self._rings.values(), self._pages):
            wrote = {s for g in groups if g.what == "write" and g.stamps is stamps for s in g.states}
            if rows and len(wrote) < len(stamps.names):
                self._blame("write", [stamps.names[s] for s in stamps.all if s not in wrote], rows, 0)

    def _of_this_step(self, rows: Tensor, first: Tensor, index: Tensor) -> tuple[_Places, Tensor | None]:
        """If there is a place for each of the step's tokens, it is those that are meant, in their order. Else it is
        what the operation says; and which of that this step has not absorbed."""
        if len(index) == len(self._absorbed.index):
            return _Places(self._absorbed.rows, self._absorbed.position, index), None
        begin, end = self._span[:, rows]
        return _Places(rows, first + 1, index), (first < begin) | (first >= end)

    def _compare(
        self,
        what: str,
        stamps: Stamps,
        states: Sequence[int],
        places: _Places,
    ) -> Tensor:
        """[states, n]: which do not hold what they should; the caller may excuse some of them, in place."""
        found = stamps.read(states, places.index)
        wrong = found != self._chains.at(places.rows, places.position).flatten()
        self._add(what, [stamps.names[state] for state in states], places, found, wrong)
        return wrong

    def _compare_contexts(self, what: str, states: Sequence[int], contexts: Sequence[Context]) -> None:
        size = self._page_size
        each = [(c, ordinal) for c in contexts for ordinal in range(len(c.pages))]
        rows, first, length = self._tensor(
            [[c.row for c, _ in each], [o * size for _, o in each], [c.length for c, _ in each]]
        )
        pages = torch.cat([c.pages for c in contexts]).long()
        offset = torch.arange(size, device=self._device)
        position = first[:, None] + offset + 1
        places = _Places(
            rows[:, None].expand_as(position), position, (pages[:, None] * size + offset).flatten()
        )
        wrong = self._compare(what, self._pages, states, places)
        wrong.masked_fill_((position > length[:, None]).flatten(), False)

    def _check_published(self, done: Done) -> None:
        """A label is made of each: the slot must hold that line of the row's tokens, in every layer."""
        grants = [*done.granted.values(), *done.exports]
        if not grants:
            return
        rows, lines, slots = self._tensor(
            [[g.row for g in grants], [g.line for g in grants], [g.slot for g in grants]]
        )
        used = torch.ones_like(rows, dtype=torch.bool)
        used[: len(done.granted)] = done.used[self._tensor(list(done.granted))]
        wrong = self._compare("publish", self._slots, self._slots.all, _Places(rows, lines, slots))
        wrong.masked_fill_(~used, False)
        self._slot_owner[slots] = self._slot_owner[slots].masked_fill(used, NOBODY)

    def _names(self, group: Group) -> list[Name]:
        """A wrong place is named once, for the first of the states."""
        return [group.stamps.names[group.states[0]]]

    def _blame(self, what: str, names: list[Name], rows: list[int], position: int) -> None:
        """What the host sees without asking the device."""
        blamed = self._tensor(rows)
        places = _Places(blamed, torch.full_like(blamed, position), torch.zeros_like(blamed))
        self._add(what, names, places, None, torch.ones(len(rows), dtype=torch.bool, device=self._device))

    def _pages_for(self, length: int) -> int:
        return pages_for(length, self._page_size)

    def _add(
        self, what: str, names: list[Name], places: _Places, found: Tensor | None, wrong: Tensor
    ) -> None:
        self._checks.append(Check(what, names, places.rows, places.index, places.position, found, wrong))

    def _tensor(self, values: Sequence[object]) -> Tensor:
        return to_device(values, self._device)


def _above(step: StateStep, places: Tensor) -> Tensor:
    """How many places come before each token's, in its text."""
    if step.tree is None:
        return places
    windows, nodes = step.tree.depths.shape
    lane = step.lane_of(len(places))
    node = places - step.position[lane]
    parent = step.tree.sources(2)[lane.clamp(max=windows - 1), node.clamp(max=nodes - 1), 0]
    return torch.where(lane < step.num_windows, step.position[lane] + parent + 1, places)


def _of_checkpoints(at: Checkpoints) -> _Places:
    # a step's rows lie in a buffer that the next step fills, perhaps before the findings are read
    return _Places(at.rows.clone(), at.position, at.slots)


def _of_cells(cells: Cells) -> _Places:
    position = cells.first[:, None] + torch.arange(1, cells.count + 1, device=cells.where.device)
    return _Places(cells.rows[:, None].expand_as(position), position, cells.where)
