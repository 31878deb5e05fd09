"""Checkpoint + journal, for any recurrence: which entries a token sees, when a line is folded, where it goes.

The mathematics of a mixer is a `Recurrence`, on dense tensors. This file drives it over the pools and is the
reference for every journaled operation. A faster twin replaces `advance` for one mixer as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..config import CHUNK
from .step import StateStep, TemporalState, Windows

Entries = dict[str, Tensor]
Inputs = Mapping[str, Tensor]


class Recurrence(Protocol):
    """One mixer's mathematics. N lanes, T tokens, L places; state [N, ...] in float32, logical axes."""

    @property
    def axes(self) -> tuple[int, ...]:
        """Where each logical axis of the state stands in the pool, whose axis 0 is the slot."""
        ...

    def entries(self, inputs: Inputs) -> Entries:
        """What these tokens add to the journal, as far as it is known before they see the state."""
        ...

    def attend(self, state: Tensor, entries: Entries, inputs: Inputs, at: Tensor, visible: Tensor) -> Tensor:
        """Outputs [N, T, ...] of the tokens whose entries lie at `at` [N, T] and who see `visible` [N, T, L].

        Completes their entries in place. A token that does not see itself is padding and changes nothing.
        """
        ...

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        """The state after all L entries."""
        ...

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """n blocks of CHUNK tokens, one lane without the N axis: outputs, and the state after each block.

        The state passes through the pool's dtype at each block's end, so that a cut there changes nothing.
        """
        ...


def advance(
    rule: Recurrence, inputs: Inputs, pool: TemporalState, step: StateStep, out: Tensor, *, exact: bool
) -> Tensor:
    """Absorb the step's tokens: outputs to `out`, entries to the journal, folds to the slots.

    inputs  {name: [tokens, ...]}  flat over the batch
    out     [tokens, ...]          written for every token of a real lane, untouched elsewhere
    """
    vectorised = step.num_windows if step.tree is not None or not exact else 0
    if vectorised:
        _advance_windows(rule, inputs, pool, step.windows, out)
    for lane in range(vectorised, len(step.rows)):
        if step.host[lane][0]:
            _advance_lane(rule, inputs, pool, step, lane, out, exact=exact)
    return out


# --- windows of all lanes at once --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Held:
    """Where a lane's journal since its checkpoint lies: place i holds position base + i, if it is filled."""

    shape: tuple[int, int]
    where: Tensor
    """[N * places]: in the rings, whose rows are laid end to end."""
    empty: Tensor
    """Which of those hold nothing of this lane."""

    @staticmethod
    def since(pool: TemporalState, rows: Tensor, base: Tensor, places: int, held: Tensor | int) -> _Held:
        place = torch.arange(places, device=rows.device)
        filled = (place < torch.as_tensor(held, device=rows.device).reshape(-1, 1)) & (rows > 0)[:, None]
        where = rows[:, None] * pool.capacity + (base[:, None] + place) % pool.capacity
        return _Held((len(rows), places), where.flatten(), (~filled).flatten().nonzero().flatten())

    def read(self, pool: TemporalState) -> Entries:
        """Entries [N, places, ...], zero where none is."""
        return {name: self._read(ring) for name, ring in pool.journal.items()}

    def _read(self, ring: Tensor) -> Tensor:
        found = ring.flatten(0, 1).index_select(0, self.where)
        return found.index_fill_(0, self.empty, 0).unflatten(0, self.shape)


@dataclass(frozen=True)
class _Segment:
    """Tokens of windows that read the same checkpoint: all of a tree, or those on one side of a line.

    here     [N, T]          the tokens that are meant
    at       [N, T]          the place of each in the journal since the checkpoint
    visible  [N, T, places]  what each sees
    token    (lane, token) of each that is meant;  entry  (lane, place) of the same
    rows, where              where their entries go in the rings
    """

    here: Tensor
    at: Tensor
    visible: Tensor
    token: tuple[Tensor, Tensor]
    entry: tuple[Tensor, Tensor]
    rows: Tensor
    where: Tensor

    @staticmethod
    def of(
        pool: TemporalState, rows: Tensor, start: Tensor, at: Tensor, here: Tensor, visible: Tensor
    ) -> _Segment:
        lane, token = here.nonzero(as_tuple=True)
        at = at.clamp(0, visible.shape[2] - 1)
        where = (start[lane] + token) % pool.capacity
        return _Segment(here, at, visible, (lane, token), (lane, at[lane, token]), rows[lane], where)

    def append(self, pool: TemporalState, entries: Entries) -> None:
        for name, ring in pool.journal.items():
            ring[self.rows, self.where] = entries[name][self.entry]


@dataclass(frozen=True)
class _WindowPlan:
    """What all layers of a step do with its windows."""

    held: _Held
    first: _Segment
    crossing: Tensor
    """Lanes whose window passes the next line ..."""
    beyond: _Segment
    """... and their tokens there."""

    @staticmethod
    def of(pool: TemporalState, windows: Windows) -> _WindowPlan:
        step, valid = windows.step, windows.valid
        held = step.position - step.end_base
        at = held[:, None] + windows.tokens
        last = max(1, int(held.max()) + step.longest_window)  # places beyond are nobody's
        places = last if step.tree is not None else min(step.grid, last)
        place = torch.arange(places, device=at.device)
        here = valid if step.tree is not None else valid & (at < step.grid)
        up_to_itself = here[..., None] & (place <= at[..., None])
        visible = up_to_itself if step.tree is None else _tree_visible(step, held, valid, places)
        crossing = (valid & ~here).any(1).nonzero().flatten()
        after, there = at[crossing] - step.grid, (valid & ~here)[crossing]
        return _WindowPlan(
            held=_Held.since(pool, step.rows, step.end_base, places, held),
            first=_Segment.of(pool, step.rows, step.position, at, here, visible),
            crossing=crossing,
            beyond=_Segment.of(
                pool,
                step.rows[crossing],
                step.position[crossing],
                after,
                there,
                there[..., None] & (place <= after[..., None]),
            ),
        )


def _advance_windows(
    rule: Recurrence, inputs: Inputs, pool: TemporalState, windows: Windows, out: Tensor
) -> None:
    step = windows.step
    plan = step.once(("journal windows", pool.capacity), lambda: _WindowPlan.of(pool, windows))
    state = load(rule, pool, step.read_slot, step.base)
    if len(windows.folding):
        lanes = windows.folding
        whole = _Held.since(pool, step.rows[lanes], step.base[lanes], step.grid, step.grid).read(pool)
        folded = rounded(rule.fold(state[lanes], whole), pool.saved.dtype)
        store(rule, pool, step.write_slot[lanes], folded)
        state[lanes] = folded

    window = {name: windows.take(x) for name, x in inputs.items()}
    fresh, entries = rule.entries(window), plan.held.read(pool)
    result = _attend(rule, state, entries, fresh, window, plan.first)
    plan.first.append(pool, entries)
    if len(plan.crossing):  # folded in registers only: what lies beyond the line may yet be rejected
        lanes = plan.crossing
        state = rounded(rule.fold(state[lanes], _lanes(entries, lanes)), pool.saved.dtype)
        entries = {name: torch.zeros_like(e) for name, e in _lanes(entries, lanes).items()}
        later = _attend(rule, state, entries, _lanes(fresh, lanes), _lanes(window, lanes), plan.beyond)
        plan.beyond.append(pool, entries)
        result[lanes] = torch.where(_like(plan.beyond.here, later), later, result[lanes])
    windows.put(out, result)


def _attend(
    rule: Recurrence, state: Tensor, entries: Entries, fresh: Entries, window: Inputs, segment: _Segment
) -> Tensor:
    for name, value in fresh.items():
        entries[name][segment.entry] = value[segment.token].to(entries[name].dtype)
    return rule.attend(state, entries, window, segment.at, segment.visible)


def _lanes(tensors: Inputs, lanes: Tensor) -> Entries:
    return {name: x[lanes] for name, x in tensors.items()}


def _tree_visible(step: StateStep, held: Tensor, valid: Tensor, places: int) -> Tensor:
    """[N, T, places]: the whole journal, then the node's ancestors."""
    assert step.tree is not None
    place = torch.arange(places, device=held.device)
    node = place - held[:, None]
    inside = (node >= 0) & (node < valid.shape[1])
    seen = step.tree.ancestors.gather(
        2, node.clamp(0, valid.shape[1] - 1)[:, None, :].expand(-1, valid.shape[1], -1)
    )
    return valid[..., None] & torch.where(inside[:, None], seen, (place < held[:, None])[:, None])


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim()))


# --- one lane, from line to line ---------------------------------------------------------------------------


@dataclass
class _Walk:
    """A lane on its way: the checkpoint it reads, and the entries since."""

    rule: Recurrence
    dtype: torch.dtype
    grid: int
    state: Tensor
    base: int
    position: int
    entries: Entries

    @property
    def room(self) -> int:
        return self.base + self.grid - self.position

    def take(self, inputs: Inputs) -> Tensor:
        """Absorb tokens [1, n, ...], no more than there is room for."""
        fresh = self.rule.entries(inputs)
        count = next(iter(inputs.values())).shape[1]
        first = self.position - self.base
        at = torch.arange(first, first + count, device=self.state.device)[None]
        for name, value in fresh.items():
            self.entries[name][:, first : first + count] = value
        visible = torch.arange(self.grid, device=at.device) <= at[..., None]
        result = self.rule.attend(self.state, self.entries, inputs, at, visible)
        self.position += count
        return result[0]

    def fold(self) -> None:
        self.state = rounded(self.rule.fold(self.state, self.entries), self.dtype)
        self.restart(self.state)

    def jump(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Absorb whole blocks [n * CHUNK, ...] in chunk form: outputs, and the state after each block."""
        result, states = self.rule.chunk(self.state[0], inputs, self.dtype)
        self.position += len(result)
        self.restart(states[-1:])
        return result, states

    def restart(self, state: Tensor) -> None:
        self.state, self.base = state, self.position
        self.entries = {name: torch.zeros_like(e) for name, e in self.entries.items()}


def _advance_lane(
    rule: Recurrence,
    inputs: Inputs,
    pool: TemporalState,
    step: StateStep,
    lane: int,
    out: Tensor,
    *,
    exact: bool,
) -> None:
    one = step.lane(lane)
    base, position, count = int(one.base), int(one.position), int(one.counts)
    end_base, certain = int(one.end_base), one.num_windows == 0
    walk = _Walk(
        rule=rule,
        dtype=pool.saved.dtype,
        grid=step.grid,
        state=load(rule, pool, one.read_slot, one.base),
        base=base,
        position=position,
        entries={},
    )
    if position - base >= step.grid:  # the line the last window passed is certain by now
        walk.entries = _Held.since(pool, one.rows, one.base, step.grid, step.grid).read(pool)
        walk.position = base + step.grid
        walk.fold()
        _keep(rule, pool, one, walk)
        walk.position = position
    held = _Held.since(pool, one.rows, torch.full_like(one.base, walk.base), step.grid, position - walk.base)
    walk.entries = held.read(pool)

    done = 0
    while done < count:
        if walk.room == 0:
            walk.fold()
            if certain:
                _keep(rule, pool, one, walk)
        first = int(one.offsets[0]) + done
        blocks = (count - done) // CHUNK if certain and not exact and walk.position % CHUNK == 0 else 0
        if blocks:
            taken = blocks * CHUNK
            result, states = walk.jump({name: x[first : first + taken] for name, x in inputs.items()})
            _keep_blocks(rule, pool, one, states, walk.position)
        else:
            taken = 1 if exact else min(count - done, walk.room)
            result = walk.take({name: x[None, first : first + taken] for name, x in inputs.items()})
            if not certain or walk.position > end_base:
                _append_lane(pool, one, walk, taken)
        out[first : first + taken] = result.to(out.dtype)
        done += taken
    if certain and walk.room == 0:
        walk.fold()
        _keep(rule, pool, one, walk)


def _append_lane(pool: TemporalState, one: StateStep, walk: _Walk, taken: int) -> None:
    positions = torch.arange(walk.position - taken, walk.position, device=one.rows.device)
    for name, ring in pool.journal.items():
        ring[one.rows, positions % pool.capacity] = walk.entries[name][0, positions - walk.base]


def _keep(rule: Recurrence, pool: TemporalState, one: StateStep, walk: _Walk) -> None:
    """Write the state at the line just folded, where somebody wants it."""
    if walk.base == int(one.end_base):
        store(rule, pool, one.write_slot, walk.state)
    for export in one.exports:
        if export.line == walk.base:
            store(rule, pool, torch.tensor([export.slot], device=one.rows.device), walk.state)


def _keep_blocks(rule: Recurrence, pool: TemporalState, one: StateStep, states: Tensor, end: int) -> None:
    lines = {end - CHUNK * (len(states) - 1 - i): i for i in range(len(states))}
    wanted = [(int(one.end_base), int(one.write_slot))] + [(e.line, e.slot) for e in one.exports]
    for line, slot in wanted:
        if line in lines:
            at = lines[line]
            store(rule, pool, torch.tensor([slot], device=one.rows.device), states[at : at + 1])


# --- the pool's view of a state ----------------------------------------------------------------------------


def load(rule: Recurrence, pool: TemporalState, slots: Tensor, base: Tensor) -> Tensor:
    """Checkpoints in float32, logical axes; zero where base is 0, whose slot is not looked at."""
    state = pool.saved.index_select(0, slots).permute(rule.axes).float().contiguous()
    cold = (base == 0).nonzero().flatten()
    if len(cold):
        state[cold] = 0.0
    return state


def store(rule: Recurrence, pool: TemporalState, slots: Tensor, state: Tensor) -> None:
    inverse = sorted(range(len(rule.axes)), key=rule.axes.__getitem__)
    pool.saved[slots] = state.permute(inverse).to(pool.saved.dtype)


def rounded(state: Tensor, dtype: torch.dtype) -> Tensor:
    """As if it had been stored and read again."""
    return state.to(dtype).float()
