"""Gated delta rule over runs, in Triton: the chunk form, cut at the absolute lines of 64 tokens.

A *segment* is what a run has of one such block: whole, or a part of it at the run's ends. `prepare` works on every
segment and value head at once and solves all that needs no state; `scan` goes along each run, holding the state in
registers; `tail` appends what the run leaves to the journal's keys and gates, which `scan` still reads.

    T = (1 + beta * between * k k^T)^-1        between[i, j]: decay from token j to token i
    w = T (beta * decay * k)     u0 = T (beta * v)     scores = scale * between * q k^T
    u = u0 - w S                 o = scale * decay * q S + scores u                S = total * S + k^T (rest * u)

Decays are exponentials of sums of numbers of one sign, never of differences of sums. A segment may begin and end
anywhere: lines that are wanted inside it (the run's last, and exports) are folded from the state at its start.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import checkpoint_kernels as checkpoints
from .kernels import with_entries


@triton.jit
def _inverse(system, PRECISION: tl.constexpr):
    """(1 + system)^-1 of a strictly lower triangular [64, 64].

    Diagonal blocks of 8 by powers, of which the eighth is zero; then of 16, 32 and 64, each from those of half its
    size. Powers of larger blocks would cancel: of keys that repeat, those of 64 have elements of 10^18.
    """
    rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    one = tl.where(rows == columns, 1.0, 0.0)
    near = tl.where(rows // 8 == columns // 8, system, 0.0)
    square = tl.dot(near, near, input_precision=PRECISION)
    inverse = tl.dot(one - near, one + square, input_precision=PRECISION)
    fourth = tl.dot(square, square, input_precision=PRECISION)
    inverse += tl.dot(inverse, fourth, input_precision=PRECISION)
    for half in tl.static_range(3):
        size = 16 << half
        below = (rows // size == columns // size) & (rows // (size // 2) != columns // (size // 2))
        left = tl.dot(inverse, tl.where(below, system, 0.0), input_precision=PRECISION)
        inverse -= tl.dot(left, inverse, input_precision=PRECISION)
    return inverse


@triton.jit
def prepare(
    qk, v, log_g, beta,  # [tokens, 2, H, K], [tokens, HV, V], [tokens, HV] twice
    w_out, u_out, scores_out,  # [segments, HV, 64, K], [.., 64, V], [.., 64, 64]
    segment_token, segment_size, v_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, VP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    segment, value_head = tl.program_id(0), tl.program_id(1)
    size = tl.load(segment_size + segment).to(tl.int32)
    if size == 0:
        return
    HV: tl.constexpr = H * GROUP
    first = tl.load(segment_token + segment).to(tl.int64)
    nodes, channels, values = tl.arange(0, 64), tl.arange(0, K), tl.arange(0, VP)
    token = first + nodes
    alive = nodes < size
    head = value_head // GROUP
    key = tl.load(qk + ((token * 2 + 1) * H + head)[:, None] * K + channels, mask=alive[:, None], other=0.0)
    query = tl.load(qk + (token * 2 * H + head)[:, None] * K + channels, mask=alive[:, None], other=0.0)
    gate = tl.load(log_g + token * HV + value_head, mask=alive, other=0.0)
    strength = tl.load(beta + token * HV + value_head, mask=alive, other=0.0)
    later = nodes[:, None] > nodes[None, :]
    between = tl.exp(tl.cumsum(tl.where(later, gate[:, None], 0.0), 0))
    decay = tl.exp(tl.cumsum(gate, 0))
    mine = segment.to(tl.int64) * HV + value_head
    keys = tl.dot(key, key.trans(1, 0), input_precision="tf32x3")
    inverse = _inverse(tl.where(later, strength[:, None] * between * keys, 0.0), PRECISION)
    dots = tl.dot(query, key.trans(1, 0), input_precision="tf32x3")
    scores = tl.where(nodes[:, None] >= nodes[None, :], scale * between * dots, 0.0)
    tl.store(scores_out + (mine * 64 + nodes[:, None]) * 64 + nodes[None, :], scores)
    weighted = (strength * decay)[:, None] * key.to(tl.float32)
    tl.store(
        w_out + (mine * 64 + nodes[:, None]) * K + channels,
        tl.dot(inverse, weighted, input_precision=PRECISION),
    )
    inside = alive[:, None] & (values < V)[None, :]
    value = tl.load(v + token[:, None] * v_stride + value_head * V + values, mask=inside, other=0.0)
    u = tl.dot(inverse, strength[:, None] * value.to(tl.float32), input_precision=PRECISION)
    tl.store(u_out + (mine * 64 + nodes[:, None]) * V + values, u, mask=(values < V)[None, :])


@triton.jit
def _at_line(state, key, u, gates, following, size, PRECISION: tl.constexpr):
    """The state after the segment's first `size` tokens; following: log_g of the token after each."""
    nodes = tl.arange(0, 64)
    counted = nodes < size
    total = tl.exp(tl.sum(tl.where(counted, gates, 0.0)))
    rest = tl.exp(tl.cumsum(tl.where(nodes + 1 < size, following, 0.0), 0, reverse=True))
    added = tl.where(counted, rest, 0.0)[:, None] * u
    return total * state + tl.dot(key.to(tl.float32).trans(1, 0), added, input_precision=PRECISION)


@triton.jit
def scan(
    qk, out, saved, scales, journal_k, journal_u, journal_g, log_g,
    w_in, u_in, scores_in,
    lane_segment, lane_segments, first_lane,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    exports, num_exports, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """lane_segment, lane_segments [runs]: the first of a run's segments, and how many it has"""
    block, value_head, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lane = first_lane + run
    row = tl.load(rows + lane).to(tl.int64)
    if row == 0:
        return
    HV: tl.constexpr = H * GROUP
    head = value_head // GROUP
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first, count = tl.load(offsets + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    values, channels, places, nodes = (
        block * BV + tl.arange(0, BV),
        tl.arange(0, K),
        tl.arange(0, JP),
        tl.arange(0, 64),
    )
    inside = values < V
    keys = journal_k + (row * CAP * H + head) * K + channels[None, :]
    adds = journal_u + (row * CAP * HV + value_head) * V + values[None, :]
    marks = journal_g + row * CAP * HV + value_head

    known = inside & (begin > 0)
    stored, stored_scale = checkpoints.load(saved, scales, slot, value_head, values, known, HV, K, V)
    state = checkpoints.wide(stored, stored_scale)
    since = begin
    if at - begin >= J:  # the line that the last window passed
        place = (begin + places) % CAP
        kept = (places < J)[:, None]
        after = tl.load(marks + ((begin + places + 1) % CAP) * HV, mask=places < J - 1, other=0.0)
        whole = tl.sum(tl.load(marks + place * HV, mask=places < J, other=0.0))
        folded = with_entries(
            state,
            tl.exp(whole),
            tl.load(keys + place[:, None] * (H * K), mask=kept, other=0.0),
            tl.exp(tl.cumsum(after, reverse=True)),
            tl.load(adds + place[:, None] * (HV * V), mask=kept & inside[None, :], other=0.0),
        )
        since = begin + J
        state = checkpoints.rounded(folded, saved.dtype.element_ty)
        if end == since:
            checkpoints.store(saved, scales, target, value_head, values, folded, inside, HV, K, V)
    held = (at - since).to(tl.int32)
    if held > 0:
        place = (since + places) % CAP
        kept = (places < held)[:, None]
        after = tl.load(marks + ((since + places + 1) % CAP) * HV, mask=places < held - 1, other=0.0)
        whole = tl.sum(tl.load(marks + place * HV, mask=places < held, other=0.0))
        state = with_entries(
            state,
            tl.exp(whole),
            tl.load(keys + place[:, None] * (H * K), mask=kept, other=0.0),
            tl.exp(tl.cumsum(after, reverse=True)),
            tl.load(adds + place[:, None] * (HV * V), mask=kept & inside[None, :], other=0.0),
        )

    start = at  # of the segment, as a position
    first_segment = tl.load(lane_segment + run).to(tl.int64)
    for i in range(tl.load(lane_segments + run).to(tl.int32)):
        size = tl.minimum(64 - start % 64, at + count - start).to(tl.int32)
        token = first + (start - at) + nodes
        alive = nodes < size
        mine = ((first_segment + i) * HV + value_head) * 64
        w = tl.load(w_in + (mine + nodes[:, None]) * K + channels)
        u = tl.load(u_in + (mine + nodes[:, None]) * V + values[None, :], mask=inside[None, :], other=0.0)
        scores = tl.load(scores_in + (mine + nodes[:, None]) * 64 + nodes[None, :])
        key = tl.load(
            qk + ((token * 2 + 1) * H + head)[:, None] * K + channels, mask=alive[:, None], other=0.0
        )
        query = tl.load(qk + (token * 2 * H + head)[:, None] * K + channels, mask=alive[:, None], other=0.0)
        gates = tl.load(log_g + token * HV + value_head, mask=alive, other=0.0)
        following = tl.load(log_g + (token + 1) * HV + value_head, mask=nodes + 1 < size, other=0.0)
        u -= tl.dot(w, state, input_precision=PRECISION)
        decay = scale * tl.exp(tl.cumsum(gates, 0))
        result = decay[:, None] * tl.dot(query.to(tl.float32), state, input_precision=PRECISION)
        result += tl.dot(scores, u, input_precision=PRECISION)
        tl.store(
            out + (token[:, None] * HV + value_head) * V + values[None, :],
            result.to(out.dtype.element_ty),
            mask=alive[:, None] & inside[None, :],
        )
        where = start + nodes
        left = (alive & (where >= end))[:, None] & inside[None, :]
        tl.store(adds + (where % CAP)[:, None] * (HV * V), u, mask=left)
        if (end > start) & (end < start + size):
            line = _at_line(state, key, u, gates, following, (end - start).to(tl.int32), PRECISION)
            checkpoints.store(saved, scales, target, value_head, values, line, inside, HV, K, V)
        for e in range(num_exports):
            wanted = tl.load(exports + 3 * e + 2)
            if (tl.load(exports + 3 * e) == lane) & (wanted > start) & (wanted <= start + size):
                line = _at_line(state, key, u, gates, following, (wanted - start).to(tl.int32), PRECISION)
                to = tl.load(exports + 3 * e + 1).to(tl.int64)
                checkpoints.store(saved, scales, to, value_head, values, line, inside, HV, K, V)
        state = _at_line(state, key, u, gates, following, size, PRECISION)
        state = checkpoints.rounded(state, saved.dtype.element_ty)
        start += size
        if start == end:
            checkpoints.store(saved, scales, target, value_head, values, state, inside, HV, K, V)


@triton.jit
def tail(
    qk, log_g, journal_k, journal_g, first_lane,
    rows, counts, offsets, position, end_base,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Keys and gates of the tokens after the run's last line."""
    head, lane = tl.program_id(0), first_lane + tl.program_id(1)
    row = tl.load(rows + lane).to(tl.int64)
    if row == 0:
        return
    HV: tl.constexpr = H * GROUP
    at, end, count = tl.load(position + lane), tl.load(end_base + lane), tl.load(counts + lane)
    first, channels = tl.load(offsets + lane).to(tl.int64), tl.arange(0, K)
    where = tl.maximum(at, end) + tl.arange(0, JP)
    left = where < at + count
    token = first + where - at
    key = tl.load(qk + ((token * 2 + 1) * H + head)[:, None] * K + channels, mask=left[:, None], other=0.0)
    ring = journal_k + (row * CAP * H + head) * K
    tl.store(ring + (where % CAP)[:, None] * (H * K) + channels, key, mask=left[:, None])
    for member in tl.static_range(GROUP):
        value_head = head * GROUP + member
        gate = tl.load(log_g + token * HV + value_head, mask=left, other=0.0)
        tl.store(journal_g + (row * CAP + where % CAP) * HV + value_head, gate, mask=left)
