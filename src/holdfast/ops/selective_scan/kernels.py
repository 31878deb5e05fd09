"""Selective scan in Triton. Every channel's state is small, so a program takes some channels with all their states.

`windows` runs for every (lane, block of channels): it folds a whole line and stores it, absorbs what else the journal
holds, then the window's tokens one by one. Where it passes a line, the state passes through the pool's dtype and is
not stored, since what lies beyond may yet be rejected.

Runs take three launches over windows of CHUNK tokens that end on multiples of it: `local` folds each as if nothing
came before, `carry` goes through them in order and leaves the state at which each begins, `scan` computes outputs.

A checkpoint is stored [slot, channel, state]. Bytes per lane and layer of 8192 channels with 16 states, float32: the
checkpoint is 512 KiB, an entry 48 KiB in bfloat16. So decode folds every token (J = 1), which reads and writes the
checkpoint and an entry; the decay rates, another 512 KiB, are the same for all lanes and stay in the L2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import piece


@triton.jit
def _token(
    x, b, dt, ring_x, ring_b, ring_dt, nth, low, at, first, inside, inner, x_stride, b_stride, dt_stride,
    D: tl.constexpr, S: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Token low + nth, from the journal or as given: its time steps [BD], and what it adds [BD, SP]."""
    value = piece(ring_x, x, nth, low, at, first, D, x_stride, inside, CAP).to(tl.float32)
    key = piece(ring_b, b, nth, low, at, first, S, b_stride, inner, CAP).to(tl.float32)
    step = piece(ring_dt, dt, nth, low, at, first, D, dt_stride, inside, CAP)
    return step, (step * value)[:, None] * key[None, :]


@triton.jit
def _folded(
    state, rates, x, b, dt, ring_x, ring_b, ring_dt, low, count, at, first, inside, inner,
    x_stride, b_stride, dt_stride, D: tl.constexpr, S: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The state after `count` tokens from `low` on, and their time. The last comes first: sums of time steps are
    taken before the exponential, and only grow."""
    since, added = tl.zeros_like(inside.to(tl.float32)), tl.zeros_like(state)
    for i in range(count):
        step, add = _token(
            x, b, dt, ring_x, ring_b, ring_dt, count - 1 - i, low, at, first, inside, inner,
            x_stride, b_stride, dt_stride, D, S, CAP,
        )  # fmt: skip
        added += tl.exp(since[:, None] * rates) * add
        since += step
    return tl.exp(since[:, None] * rates) * state + added, since


@triton.jit
def windows(
    x, b, c, dt, a, out,  # [tokens, D], [tokens, S] twice, [tokens, D], [D, S], [tokens, D]
    saved,  # [slots, D, S]
    journal_x, journal_b, journal_dt,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    x_stride, b_stride, c_stride, dt_stride,
    D: tl.constexpr, BD: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, J: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    block, lane = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    if row == 0:
        return
    channels, states = block * BD + tl.arange(0, BD), tl.arange(0, SP)
    inside, inner = channels < D, states < S
    tile, offset = inside[:, None] & inner[None, :], channels[:, None] * S + states[None, :]
    rates = tl.load(a + offset, mask=tile, other=0.0)
    loaded = tl.load(saved + slot * D * S + offset, mask=tile & (begin > 0), other=0.0)
    state = loaded.to(tl.float32)
    ring_x, ring_dt = journal_x + row * CAP * D + channels, journal_dt + row * CAP * D + channels
    ring_b = journal_b + row * CAP * S + states
    if end > begin:
        state, _ = _folded(
            state, rates, x + channels, b + states, dt + channels, ring_x, ring_b, ring_dt, begin, J, at, first,
            inside, inner, x_stride, b_stride, dt_stride, D, S, CAP,
        )  # fmt: skip
        folded = state.to(saved.dtype.element_ty)
        tl.store(saved + target * D * S + offset, folded, mask=tile)
        state = folded.to(tl.float32)
    if count == 0:
        return
    held = (at - end).to(tl.int32)
    state, _ = _folded(
        state, rates, x + channels, b + states, dt + channels, ring_x, ring_b, ring_dt, end, held, at, first,
        inside, inner, x_stride, b_stride, dt_stride, D, S, CAP,
    )  # fmt: skip
    for t in range(count):
        if held + t == J:
            state = state.to(saved.dtype.element_ty).to(tl.float32)
        token = first + t
        value = tl.load(x + token * x_stride + channels, mask=inside, other=0.0)
        key = tl.load(b + token * b_stride + states, mask=inner, other=0.0)
        query = tl.load(c + token * c_stride + states, mask=inner, other=0.0).to(tl.float32)
        step = tl.load(dt + token * dt_stride + channels, mask=inside, other=0.0)
        place = (at + t) % CAP
        tl.store(ring_x + place * D, value, mask=inside)
        tl.store(ring_dt + place * D, step, mask=inside)
        tl.store(ring_b + place * S, key, mask=inner & (block == 0))
        add = (step * value.to(tl.float32))[:, None] * key.to(tl.float32)[None, :]
        state = tl.exp(step[:, None] * rates) * state + add
        tl.store(out + token * D + channels, tl.sum(state * query[None, :], 1), mask=inside)


@triton.jit
def local(
    x, b, dt, a,
    journal_x, journal_b, journal_dt,
    states_out, time_out,  # [windows, D, S], [windows, D]
    window_run, window_low,  # [windows]: its run and first position; some are past the run's end
    rows, counts, offsets, position,
    x_stride, b_stride, dt_stride,
    D: tl.constexpr, BD: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, CHUNK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """What a window leaves of nothing. The last of a run is not needed: nothing comes after it."""
    block, window = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane, low = tl.load(window_run + window), tl.load(window_low + window)
    row, at = tl.load(rows + lane).to(tl.int64), tl.load(position + lane)
    first, high = tl.load(offsets + lane).to(tl.int64), (low // CHUNK + 1) * CHUNK
    if (row == 0) | (high >= at + tl.load(counts + lane)):
        return
    channels, states = block * BD + tl.arange(0, BD), tl.arange(0, SP)
    inside, inner = channels < D, states < S
    tile, offset = inside[:, None] & inner[None, :], channels[:, None] * S + states[None, :]
    rates = tl.load(a + offset, mask=tile, other=0.0)
    ring_x, ring_dt = journal_x + row * CAP * D + channels, journal_dt + row * CAP * D + channels
    state, time = _folded(
        tl.zeros((BD, SP), tl.float32), rates, x + channels, b + states, dt + channels,
        ring_x, journal_b + row * CAP * S + states, ring_dt, low, (high - low).to(tl.int32), at, first,
        inside, inner, x_stride, b_stride, dt_stride, D, S, CAP,
    )  # fmt: skip
    tl.store(states_out + window * D * S + offset, state, mask=tile)
    tl.store(time_out + window * D + channels, time, mask=inside)


@triton.jit
def carry(
    a, saved, states, time,  # states: what windows leave of nothing, and then the state at which each begins
    first_window,  # [runs]
    rows, counts, position, base, read_slot,
    D: tl.constexpr, BD: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    block, lane = tl.program_id(0), tl.program_id(1)
    row, begin = tl.load(rows + lane), tl.load(base + lane)
    last, slot = tl.load(position + lane) + tl.load(counts + lane), tl.load(read_slot + lane).to(tl.int64)
    if row == 0:
        return
    channels, inner_states = block * BD + tl.arange(0, BD), tl.arange(0, SP)
    inside = channels < D
    tile = inside[:, None] & (inner_states < S)[None, :]
    offset = channels[:, None] * S + inner_states[None, :]
    rates = tl.load(a + offset, mask=tile, other=0.0)
    state = tl.load(saved + slot * D * S + offset, mask=tile & (begin > 0), other=0.0)
    window = tl.load(first_window + lane)
    for _ in range(((last - 1) // CHUNK - begin // CHUNK).to(tl.int32)):
        home = states + window * D * S + offset
        left = tl.load(home, mask=tile, other=0.0)
        passed = tl.load(time + window * D + channels, mask=inside, other=0.0)
        tl.store(home, state.to(tl.float32), mask=tile)
        state = (tl.exp(passed[:, None] * rates) * state.to(tl.float32) + left).to(saved.dtype.element_ty)
        window += 1
    tl.store(states + window * D * S + offset, state.to(tl.float32), mask=tile)


@triton.jit
def scan(
    x, b, c, dt, a, out, saved,
    journal_x, journal_b, journal_dt, states_in,
    window_run, window_low,
    rows, counts, offsets, position, end_base, write_slot,
    export_first, export_line, export_slot,
    x_stride, b_stride, c_stride, dt_stride,
    D: tl.constexpr, BD: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, CHUNK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """A window's outputs; and the state at the last line, and where exports are asked for."""
    block, window = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane, low = tl.load(window_run + window), tl.load(window_low + window)
    row, at, stop = tl.load(rows + lane).to(tl.int64), tl.load(position + lane), tl.load(end_base + lane)
    first, last = tl.load(offsets + lane).to(tl.int64), at + tl.load(counts + lane)
    target = tl.load(write_slot + lane).to(tl.int64)
    export, exports = tl.load(export_first + lane), tl.load(export_first + lane + 1)
    if (row == 0) | (low >= last):
        return
    channels, states = block * BD + tl.arange(0, BD), tl.arange(0, SP)
    inside, inner = channels < D, states < S
    tile, offset = inside[:, None] & inner[None, :], channels[:, None] * S + states[None, :]
    rates = tl.load(a + offset, mask=tile, other=0.0)
    state = tl.load(states_in + window * D * S + offset, mask=tile, other=0.0)
    ring_x, ring_dt = journal_x + row * CAP * D + channels, journal_dt + row * CAP * D + channels
    ring_b = journal_b + row * CAP * S + states
    while (export < exports) & (tl.load(export_line + export) <= low):
        export += 1  # of a window before this one
    high = tl.minimum((low // CHUNK + 1) * CHUNK, last)
    while low < high:
        wished = tl.load(export_line + export)
        wished = tl.where(export < exports, wished, high)
        until = tl.minimum(tl.minimum(wished, high), tl.where(low < stop, stop, high))
        for nth in range((until - low).to(tl.int32)):
            step, add = _token(
                x + channels, b + states, dt + channels, ring_x, ring_b, ring_dt, nth, low, at, first,
                inside, inner, x_stride, b_stride, dt_stride, D, S, CAP,
            )  # fmt: skip
            state = tl.exp(step[:, None] * rates) * state + add
            new = low + nth >= at
            token = first + low + nth - at
            query = tl.load(c + token * c_stride + states, mask=inner & new, other=0.0).to(tl.float32)
            tl.store(out + token * D + channels, tl.sum(state * query[None, :], 1), mask=inside & new)
        rounded = state.to(saved.dtype.element_ty)
        if (until == stop) | ((export < exports) & (wished == until)):
            state = rounded.to(tl.float32)
        if until == stop:
            tl.store(saved + target * D * S + offset, rounded, mask=tile)
        while (export < exports) & (tl.load(export_line + export) == until):
            copy = tl.load(export_slot + export)
            tl.store(saved + copy * D * S + offset, rounded, mask=tile)
            export += 1
        low = until
