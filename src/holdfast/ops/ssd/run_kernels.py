"""State space duality for runs, in Triton: block by block, with the state in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import piece, product


@triton.jit
def chunk(
    x, b, c, dt, log_decay, out,  # [tokens, H, P], [tokens, G, S] twice, [tokens, H] twice, [tokens, H, P]
    saved, journal_x, journal_b, journal_dt, journal_g,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    export_first, export_line, export_slot,
    x_stride, b_stride, c_stride, dt_stride, g_stride,
    G: tl.constexpr, GROUP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, P: tl.constexpr, BP: tl.constexpr,
    BT: tl.constexpr, CHUNK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Runs, from their checkpoint on: first what the journal holds, then the tokens given.

    Pieces end at multiples of BT, at the last line, and where an export is asked for. There the state passes through
    the pool's dtype, unless it is at a multiple of BT that is none of CHUNK. The journal is only read: its tail is
    appended when all have read it.
    """
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    begin, stop, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    export, exports = tl.load(export_first + lane), tl.load(export_first + lane + 1)
    if row == 0:
        return
    H: tl.constexpr = G * GROUP
    states, channels, nth = tl.arange(0, SP), block * BP + tl.arange(0, BP), tl.arange(0, BT)
    inner, inside = states < S, channels < P
    tile = inner[:, None] & inside[None, :]
    offset = states[:, None] * P + channels[None, :]
    ring_b = journal_b + (row * CAP * G + head // GROUP) * S + states[None, :]
    ring_x = journal_x + (row * CAP * H + head) * P + channels[None, :]
    ring_g, ring_dt = journal_g + row * CAP * H + head, journal_dt + row * CAP * H + head
    given_b = b + (head // GROUP) * S + states[None, :]
    given_c = c + (head // GROUP) * S + states[None, :]
    given_x = x + head * P + channels[None, :]

    loaded = tl.load(saved + (slot * H + head) * S * P + offset, mask=tile & (begin > 0), other=0.0)
    state = loaded.to(tl.float32)
    low, last = begin, at + count
    while low < last:
        wished = tl.load(export_line + export)
        wished = tl.where((export < exports) & (wished > low), wished, last)
        high = tl.minimum(tl.minimum((low // BT + 1) * BT, wished), tl.where(low < stop, stop, last))
        exists = nth < (high - low).to(tl.int32)
        gates = piece(ring_g, log_decay + head, nth, low, at, first, H, g_stride, exists, CAP)
        after = piece(
            ring_g,
            log_decay + head,
            nth + 1,
            low,
            at,
            first,
            H,
            g_stride,
            nth < (high - low - 1).to(tl.int32),
            CAP,
        )
        steps = piece(ring_dt, dt + head, nth, low, at, first, H, dt_stride, exists, CAP)
        keys = piece(
            ring_b, given_b, nth[:, None], low, at, first, G * S, b_stride,
            exists[:, None] & inner[None, :], CAP,
        )  # fmt: skip
        values = piece(
            ring_x, given_x, nth[:, None], low, at, first, H * P, x_stride,
            exists[:, None] & inside[None, :], CAP,
        )  # fmt: skip
        asked = exists & (nth >= (at - low).to(tl.int32))
        flat = first + low - at
        queries = tl.load(
            given_c + flat * c_stride + nth[:, None] * c_stride,
            mask=asked[:, None] & inner[None, :],
            other=0.0,
        )
        # [t, i]: the sum of gates after i up to t, of one sign only
        between = tl.cumsum(tl.where(nth[:, None] > nth[None, :], gates[:, None], 0.0), 0)
        near = tl.where(nth[:, None] >= nth[None, :], tl.exp(between) * steps[None, :], 0.0)
        near *= product(queries, keys.trans(1, 0))
        since_start = tl.exp(tl.cumsum(gates))
        result = product(near, values) + since_start[:, None] * product(queries, state)
        tl.store(
            out + (flat * H + head) * P + nth[:, None] * (H * P) + channels[None, :],
            result,
            mask=asked[:, None] & inside[None, :],
        )
        weight = steps * tl.exp(tl.cumsum(after, reverse=True))
        added = product(keys.trans(1, 0), weight[:, None] * values.to(tl.float32))
        state = tl.exp(tl.sum(gates)) * state + added
        rounded = state.to(saved.dtype.element_ty)
        if high == stop:
            tl.store(saved + (target * H + head) * S * P + offset, rounded, mask=tile)
        while (export < exports) & (tl.load(export_line + export) == high):
            copy = tl.load(export_slot + export)
            tl.store(saved + (copy * H + head) * S * P + offset, rounded, mask=tile)
            export += 1
        if (high % CHUNK == 0) | (high == stop) | (high == wished):
            state = rounded.to(tl.float32)
        low = high
