"""The delta rule gated by channel for runs, in Triton: as windows of at most 16 tokens that end on the grid, with the
state in registers. A token that the journal holds already is one whose entry is known."""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import piece, product
from .kernels import own_entries, passed_on


@triton.jit
def front_run(
    q, k, log_g, beta,  # [tokens, H, K] three times, [tokens, H]
    journal_k, journal_g,  # [rows, CAP, H, K]
    mix_out,  # [windows, H, 2 TP, TP]
    window_run, window_low,  # [windows]: its run and first position; some are past the run's end
    rows, counts, offsets, position,
    q_stride, k_stride, g_stride, beta_stride,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, W: tl.constexpr, TP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The triangular systems of runs' windows, all at once. What the journal holds has no system: it is known."""
    head, window = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane, low = tl.load(window_run + window), tl.load(window_low + window)
    row, at = tl.load(rows + lane).to(tl.int64), tl.load(position + lane)
    first, last = tl.load(offsets + lane).to(tl.int64), at + tl.load(counts + lane)
    if (row == 0) | (low >= last):
        return
    high = tl.minimum((low // W + 1) * W, last)
    count, held = (high - low).to(tl.int32), (at - low).to(tl.int32)
    nodes, channels = tl.arange(0, TP), tl.arange(0, KP)
    inner = channels < K
    ring = (row * CAP * H + head) * K + channels
    keys = piece(
        (journal_k + ring)[None, :], (k + head * K + channels)[None, :], nodes[:, None], low, at, first,
        H * K, k_stride, (nodes < count)[:, None] & inner[None, :], CAP,
    ).to(tl.float32)  # fmt: skip
    apart, inverse = tl.zeros((TP, KP), tl.float32), tl.zeros((TP, TP), tl.float32)
    mix = mix_out + (window * H + head) * 2 * TP * TP + nodes
    for t in range(count):
        token = first + low - at + t
        given = inner & (t >= held)
        gate = piece(
            journal_g + ring, log_g + head * K + channels, t, low, at, first, H * K, g_stride, inner, CAP
        )
        key = tl.sum(tl.where((nodes == t)[:, None], keys, 0.0), 0)
        query = tl.load(q + token * q_stride + head * K + channels, mask=given, other=0.0).to(tl.float32)
        strength = tl.load(beta + token * beta_stride + head, mask=t >= held, other=0.0).to(tl.float32)
        apart = passed_on(apart, t, gate)
        inverse, solved, by_query = own_entries(apart, keys, inverse, t, nodes <= t, key, query, strength)
        tl.store(mix + t * TP, solved)
        tl.store(mix + (TP + t) * TP, by_query)


@triton.jit
def main_run(
    q, k, v, log_g, beta, out,  # [tokens, H, K] twice, [tokens, H, V], [tokens, H, K], [tokens, H], [tokens, H, V]
    saved,  # [slots, H, K, V]
    journal_k, journal_u, journal_g, mix_in,
    first_window,  # [runs]
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    export_first, export_line, export_slot,
    q_stride, k_stride, v_stride, g_stride, beta_stride,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, W: tl.constexpr,
    TP: tl.constexpr, CHUNK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Runs, from their checkpoint on, window by window. The state passes through the pool's dtype at multiples of
    CHUNK, at the last line, and where it is exported."""
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    begin, stop, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first, window = tl.load(offsets + lane).to(tl.int64), tl.load(first_window + lane)
    export, exports = tl.load(export_first + lane), tl.load(export_first + lane + 1)
    if row == 0:
        return
    channels, values, nodes = tl.arange(0, KP), block * BV + tl.arange(0, BV), tl.arange(0, TP)
    inner, inside = (channels < K)[None, :], (values < V)[None, :]
    tile = (channels < K)[:, None] & inside
    offset = channels[:, None] * V + values[None, :]
    ring = (row * CAP * H + head) * K + channels[None, :]
    ring_u = journal_u + (row * CAP * H + head) * V + values[None, :]
    given_k, given_q = k + head * K + channels[None, :], q + head * K + channels[None, :]
    given_g, given_v = log_g + head * K + channels[None, :], v + head * V + values[None, :]
    state = tl.load(saved + (slot * H + head) * K * V + offset, mask=tile & (begin > 0), other=0.0).to(
        tl.float32
    )
    low, last = begin, at + count
    while low < last:
        high = tl.minimum((low // W + 1) * W, last)
        size = (high - low).to(tl.int32)
        nth, exists = nodes[:, None], (nodes < size)[:, None]
        new = (nodes >= (at - low).to(tl.int32)) & (nodes < size)
        flat = first + low - at
        keys = piece(journal_k + ring, given_k, nth, low, at, first, H * K, k_stride, exists & inner, CAP).to(
            tl.float32
        )
        gates = piece(journal_g + ring, given_g, nth, low, at, first, H * K, g_stride, exists & inner, CAP)
        after = piece(
            journal_g + ring, given_g, nth + 1, low, at, first, H * K, g_stride,
            (nodes < size - 1)[:, None] & inner, CAP,
        )  # fmt: skip
        queries = tl.load(
            given_q + flat * q_stride + nth * q_stride, mask=new[:, None] & inner, other=0.0
        ).to(tl.float32)
        value = tl.load(given_v + flat * v_stride + nth * v_stride, mask=new[:, None] & inside, other=0.0).to(
            tl.float32
        )
        place = ((low % CAP).to(tl.int32) + nth) % CAP
        known = tl.load(ring_u + place * (H * V), mask=exists & ~new[:, None] & inside, other=0.0)
        strength = tl.load(beta + (flat + nodes) * beta_stride + head, mask=new, other=0.0).to(tl.float32)
        mix = mix_in + (window * H + head) * 2 * TP * TP + nth * TP + nodes[None, :]
        both = exists & (nodes < size)[None, :]
        decay = tl.exp(tl.cumsum(gates, 0))
        recalled = product(decay * keys, state)
        missing = tl.where(new[:, None], strength[:, None] * (value - recalled), known)
        fresh = product(tl.load(mix, mask=both, other=0.0), missing)
        seen = product(tl.load(mix + TP * TP, mask=both, other=0.0), missing)
        tl.store(
            out + ((flat + nodes)[:, None] * H + head) * V + values[None, :],
            product(decay * queries, state) + seen,
            mask=new[:, None] & inside,
        )
        if low >= stop:
            tl.debug_barrier()  # all have read what may lie in the same places
            tl.store(ring_u + place * (H * V), fresh, mask=new[:, None] & inside)
        keys *= tl.exp(tl.cumsum(after, 0, reverse=True))
        state = tl.exp(tl.sum(gates, 0))[:, None] * state + product(keys.trans(1, 0), fresh)
        wished = tl.load(export_line + export)
        if (high % CHUNK == 0) | (high == stop) | ((export < exports) & (wished == high)):
            rounded = state.to(saved.dtype.element_ty)
            state = rounded.to(tl.float32)
            if (high == stop) & (stop > begin):
                tl.store(saved + (target * H + head) * K * V + offset, rounded, mask=tile)
            while (export < exports) & (tl.load(export_line + export) == high):
                copy = tl.load(export_slot + export)
                tl.store(saved + (copy * H + head) * K * V + offset, rounded, mask=tile)
                export += 1
        window += 1
        low = high
