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
from .alike import alike
from .places import Cells, Checkpoints, Scattered, States, TemporalState
from .rounding import rounded
from .step import StateStep, Windows

Entries = dict[str, Tensor]
Inputs = Mapping[str, Tensor]


class Recurrence(Protocol):
    """One mixer's mathematics. N lanes, T tokens, L places; state [N, ...] in float32, logical axes."""

    @property
    def axes(self) -> tuple[int, ...]:
        """Where each logical axis of the state stands in the pool, whose axis 0 is the slot."""
        ...

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        """Outputs [N, T, ...] of tokens, and their entries.

        They see all that is held since the state, [N, L, ...], where an entry of zeros is as none; and of one
        another, themselves included, what `sees` [T, T] or [N, T, T] tells.
        """
        ...

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        """The state after all L entries, where one of zeros is as none."""
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


def _held(pool: TemporalState, rows: Tensor, base: Tensor, places: int, held: Tensor | int) -> Cells:
    """A lane's journal since its checkpoint: place i holds position base + i, if so many are held."""
    place = torch.arange(places, device=rows.device)
    filled = (place < torch.as_tensor(held, device=rows.device).reshape(-1, 1)) & (rows > 0)[:, None]
    where = rows[:, None] * pool.capacity + (base[:, None] + place) % pool.capacity
    empty = (~filled).flatten().nonzero().flatten()
    return Cells(rows, base, places, where.flatten(), empty if len(empty) else None)


@dataclass(frozen=True)
class _WindowPlan:
    """What all layers of a step do with its windows.

    sees       [T, T], or [N, T, T] of a tree
    held       the journal since the checkpoint;  appended  where the window's entries go
    crossing   lanes whose window passes the next line
    beyond     [crossing, T]: their tokens there
    """

    sees: Tensor
    held: Cells
    appended: Cells
    crossing: Tensor
    beyond: Tensor

    @staticmethod
    def of(pool: TemporalState, windows: Windows) -> _WindowPlan:
        step, tree = windows.step, windows.step.tree
        held = step.position - step.end_base
        lane, token = windows.existing
        rows, position = step.rows[lane], step.position[lane] + token
        beyond = windows.valid & (held[:, None] + windows.tokens >= step.grid)
        crossing = beyond.any(1).nonzero().flatten() if tree is None else lane[:0]
        return _WindowPlan(
            sees=_chain(step.longest_window, held.device) if tree is None else tree.ancestors,
            held=_held(pool, step.rows, step.end_base, int(held.max()), held),
            appended=Cells(rows, position, 1, rows * pool.capacity + position % pool.capacity),
            crossing=crossing,
            beyond=beyond[crossing],
        )


def _advance_windows(
    rule: Recurrence, inputs: Inputs, pool: TemporalState, windows: Windows, out: Tensor
) -> None:
    step = windows.step
    plan = step.once(("journal windows", pool.capacity), lambda: _WindowPlan.of(pool, windows))
    if len(windows.folding):
        _fold_lines(rule, pool, windows)
    if not step.longest_window:
        return
    state = load(rule, pool, windows.begin_from)
    window, held = {name: windows.take(x) for name, x in inputs.items()}, pool.read(plan.held)
    result, fresh = rule.attend(state, held, window, plan.sees)
    if len(plan.crossing):
        result, fresh = _pass_line(rule, state, held, window, plan, (result, fresh), pool.saved.dtype)
    pool.append(plan.appended, {name: windows.existing_of(entry) for name, entry in fresh.items()})
    windows.put(out, result)


def _fold_lines(rule: Recurrence, pool: TemporalState, windows: Windows) -> None:
    """Of the lanes whose journal holds a whole line: it is certain by now, and goes to memory."""
    step, lanes = windows.step, windows.folding
    whole = step.once(
        ("whole line", pool.capacity),
        lambda: _held(pool, step.rows[lanes], step.base[lanes], step.grid, step.grid),
    )
    store(
        rule,
        pool,
        windows.fold_to,
        rule.fold(gathered(load(rule, pool, windows.fold_from)), pool.read(whole)),
    )


def _pass_line(
    rule: Recurrence,
    state: States,
    held: Entries,
    window: Inputs,
    plan: _WindowPlan,
    before: tuple[Tensor, Entries],
    dtype: torch.dtype,
) -> tuple[Tensor, Entries]:
    """The same for tokens beyond the line. It is folded in registers only: they may yet be rejected."""
    lanes, beyond = plan.crossing, plan.beyond
    result, fresh = before[0][lanes], _lanes(before[1], lanes)
    certain = {
        name: torch.cat((held[name][lanes], torch.where(_like(beyond, entry), 0, entry)), 1)
        for name, entry in fresh.items()
    }
    folded = rounded(rule.fold(gathered(state)[lanes], certain), dtype)
    none = {name: entry[:, :0] for name, entry in certain.items()}
    later, later_fresh = rule.attend(folded, none, _lanes(window, lanes), plan.sees & beyond[:, None])
    return before[0].index_copy(0, lanes, torch.where(_like(beyond, later), later, result)), {
        name: before[1][name].index_copy(
            0, lanes, torch.where(_like(beyond, entry), later_fresh[name], entry)
        )
        for name, entry in fresh.items()
    }


def _lanes(tensors: Inputs, lanes: Tensor) -> Entries:
    return {name: x[lanes] for name, x in tensors.items()}


def _chain(tokens: int, device: torch.device) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim()))


# --- one lane, from line to line ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Alike:
    """A recurrence to which all that it is given lies alike: from the pool, in either order of axes, or at hand."""

    rule: Recurrence

    @property
    def axes(self) -> tuple[int, ...]:
        return self.rule.axes

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        return self.rule.attend(alike(gathered(state)), _all_alike(held), _all_alike(inputs), sees)

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        return self.rule.fold(alike(state), _all_alike(entries))

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.rule.chunk(alike(state), _all_alike(inputs), dtype)


def _all_alike(tensors: Inputs) -> Entries:
    return {name: alike(x) for name, x in tensors.items()}


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
        count = next(iter(inputs.values())).shape[1]
        result, fresh = self.rule.attend(self.state, self.entries, inputs, _chain(count, self.state.device))
        self.entries = {
            name: torch.cat((held, fresh[name].to(held.dtype)), 1) for name, held in self.entries.items()
        }
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
        self.entries = {name: entry[:, :0] for name, entry in self.entries.items()}


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
        rule=_Alike(rule) if exact else rule,
        dtype=pool.saved.dtype,
        grid=step.grid,
        state=gathered(load(rule, pool, one.read_from)),
        base=base,
        position=position,
        entries={},
    )
    if position - base >= step.grid:  # the line the last window passed is certain by now
        whole = one.once(
            ("whole line", pool.capacity), lambda: _held(pool, one.rows, one.base, step.grid, step.grid)
        )
        walk.entries = pool.read(whole)
        walk.position = base + step.grid
        walk.fold()
        _keep(rule, pool, one, walk)
        walk.position = position
    since = torch.full_like(one.base, walk.base)
    tail = one.once(
        ("tail", pool.capacity),
        lambda: _held(pool, one.rows, since, position - walk.base, position - walk.base),
    )
    walk.entries = pool.read(tail)

    done = 0
    while done < count:
        if walk.room == 0:
            walk.fold()
            if certain:
                _keep(rule, pool, one, walk)
        first = int(one.offsets[0]) + done
        jumps = certain and not exact and walk.position % CHUNK == 0
        blocks = max(0, end_base - walk.position) // CHUNK if jumps else 0
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
    cells = Cells(
        one.rows.expand_as(positions), positions, 1, one.rows * pool.capacity + positions % pool.capacity
    )
    pool.append(cells, {name: value[0, -taken:] for name, value in walk.entries.items()})


def _keep(rule: Recurrence, pool: TemporalState, one: StateStep, walk: _Walk) -> None:
    """Write the state at the line just folded, where somebody wants it."""
    if walk.base == int(one.end_base):
        store(rule, pool, one.fold_to, walk.state)
    for export, to in zip(one.exports, one.export_to, strict=True):
        if export.line == walk.base:
            store(rule, pool, to, walk.state)


def _keep_blocks(rule: Recurrence, pool: TemporalState, one: StateStep, states: Tensor, end: int) -> None:
    lines = {end - CHUNK * (len(states) - 1 - i): i for i in range(len(states))}
    exports = zip((export.line for export in one.exports), one.export_to, strict=True)
    for line, to in ((int(one.end_base), one.fold_to), *exports):
        if line in lines:
            at = lines[line]
            store(rule, pool, to, states[at : at + 1])


# --- the pool's view of a state ----------------------------------------------------------------------------


def load(rule: Recurrence, pool: TemporalState, at: Checkpoints) -> States:
    """Checkpoints in float32, logical axes; to be read only, for they may be the pool's own."""
    state = pool.load(at)
    if isinstance(state, Scattered):
        return Scattered(state.stored.permute(rule.axes), state.runs)
    return state.permute(rule.axes).float()


def gathered(state: States) -> Tensor:
    return state.gathered() if isinstance(state, Scattered) else state


def store(rule: Recurrence, pool: TemporalState, at: Checkpoints, state: Tensor) -> None:
    inverse = sorted(range(len(rule.axes)), key=rule.axes.__getitem__)
    pool.store(at, state.permute(inverse))
