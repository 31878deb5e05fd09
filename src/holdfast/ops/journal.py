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
from .step import StateStep, TemporalState

Entries = dict[str, Tensor]
Inputs = Mapping[str, Tensor]


class Recurrence(Protocol):
    """One mixer's mathematics. N lanes, T tokens, L journal places; state [N, ...] in float32, logical axes."""

    axes: tuple[int, ...]
    """Where each logical axis of the state stands in the pool, whose axis 0 is the slot."""

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
        _advance_windows(rule, inputs, pool, step.lanes(0, vectorised), out)
    for lane in range(vectorised, len(step.rows)):
        if int(step.rows[lane]):
            _advance_lane(rule, inputs, pool, step, lane, out, exact=exact)
    return out


# --- windows of all lanes at once --------------------------------------------------------------------------


def _advance_windows(
    rule: Recurrence, inputs: Inputs, pool: TemporalState, step: StateStep, out: Tensor
) -> None:
    real = step.rows > 0
    state = load(rule, pool, step.read_slot, step.base)
    folds = (step.end_base > step.base) & real
    if bool(folds.any()):
        lanes = folds.nonzero().flatten()
        whole = _journal(pool, step.rows[lanes], step.base[lanes], step.grid, step.grid)
        state[lanes] = rounded(rule.fold(state[lanes], whole), pool.saved.dtype)
        store(rule, pool, step.write_slot[lanes], state[lanes])

    tokens = torch.arange(step.longest_window, device=step.rows.device)
    valid = (tokens < step.counts[:, None]) & real[:, None]
    flat = torch.where(valid, step.offsets[:-1, None] + tokens, 0)
    window = {name: x[flat] for name, x in inputs.items()}
    at = (step.position - step.end_base)[:, None] + tokens
    held = step.position - step.end_base
    if step.tree is None:
        here = valid & (at < step.grid)
        places = step.grid
        visible = here[..., None] & (torch.arange(places, device=at.device) <= at[..., None])
    else:
        here = valid
        places = step.grid - 1 + step.longest_window
        visible = _tree_visible(step, held, valid, places)
    entries = _journal(pool, step.rows, step.end_base, places, held)
    fresh = rule.entries(window)
    _place(entries, fresh, at, here)
    result = rule.attend(state, entries, window, at.clamp(max=places - 1), visible)
    out[flat[here]] = result[here].to(out.dtype)
    _append(pool, step, entries, tokens, at, here)

    crossing = valid & ~here
    if bool(crossing.any()):  # folded in registers only: what lies beyond the line may yet be rejected
        lanes = crossing.any(1).nonzero().flatten()
        beyond = {name: e[lanes] for name, e in entries.items()}
        state = rounded(rule.fold(state[lanes], beyond), pool.saved.dtype)
        at, here = at[lanes] - places, crossing[lanes]
        entries = {name: torch.zeros_like(e) for name, e in beyond.items()}
        _place(entries, {name: x[lanes] for name, x in fresh.items()}, at, here)
        visible = here[..., None] & (torch.arange(places, device=at.device) <= at[..., None])
        window = {name: x[lanes] for name, x in window.items()}
        result = rule.attend(state, entries, window, at.clamp(min=0), visible)
        out[flat[lanes][here]] = result[here].to(out.dtype)
        _append(pool, step, entries, tokens, at, here, lanes)


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


def _journal(pool: TemporalState, rows: Tensor, base: Tensor, places: int, held: Tensor | int) -> Entries:
    """The first `held` entries since base, at places 0 .. held - 1; zero beyond."""
    place = torch.arange(places, device=rows.device)
    filled = (place < torch.as_tensor(held, device=rows.device).reshape(-1, 1)) & (rows > 0)[:, None]
    entries = {}
    for name, ring in pool.journal.items():
        found = ring[rows[:, None], (base[:, None] + place) % ring.shape[1]]
        entries[name] = torch.where(_like(filled, found), found, 0)
    return entries


def _place(entries: Entries, fresh: Entries, at: Tensor, here: Tensor) -> None:
    lane, token = here.nonzero(as_tuple=True)
    for name, value in fresh.items():
        entries[name][lane, at[lane, token]] = value[lane, token].to(entries[name].dtype)


def _append(
    pool: TemporalState,
    step: StateStep,
    entries: Entries,
    tokens: Tensor,
    at: Tensor,
    here: Tensor,
    lanes: Tensor | None = None,
) -> None:
    rows, position = step.rows, step.position
    if lanes is not None:
        rows, position = rows[lanes], position[lanes]
    lane, token = here.nonzero(as_tuple=True)
    for name, ring in pool.journal.items():
        ring[rows[lane], (position[lane] + tokens[token]) % ring.shape[1]] = entries[name][lane, at[lane, token]]


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
        count = next(iter(fresh.values())).shape[1]
        first = self.position - self.base
        at = torch.arange(first, first + count, device=self.state.device)[None]
        _place(self.entries, fresh, at, torch.ones_like(at, dtype=torch.bool))
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
    rule: Recurrence, inputs: Inputs, pool: TemporalState, step: StateStep, lane: int, out: Tensor, *, exact: bool
) -> None:
    one = step.lanes(lane, lane + 1)
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
        walk.entries = _journal(pool, one.rows, one.base, step.grid, step.grid)
        walk.position = base + step.grid
        walk.fold()
        _keep(rule, pool, one, walk)
        walk.position = position
    walk.entries = _journal(pool, one.rows, one.base * 0 + walk.base, step.grid, position - walk.base)

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
        ring[one.rows, positions % ring.shape[1]] = walk.entries[name][0, positions - walk.base]


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
    state = pool.saved[slots].permute(rule.axes).float().contiguous()
    return torch.where(_like(base > 0, state), state, 0.0)


def store(rule: Recurrence, pool: TemporalState, slots: Tensor, state: Tensor) -> None:
    inverse = sorted(range(len(rule.axes)), key=rule.axes.__getitem__)
    pool.saved[slots] = state.permute(inverse).to(pool.saved.dtype)


def rounded(state: Tensor, dtype: torch.dtype) -> Tensor:
    """As if it had been stored and read again."""
    return state.to(dtype).float()
