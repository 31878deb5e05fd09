"""Gated delta rule over windows, in Triton: the checkpoint is read once, and written only by a fold.

`front` runs for every (lane, key head): it appends the window's keys and gates to the journal and reduces all
that depends on keys and gates alone to small matrices. `main` runs for every (lane, value head, block of value
channels) and is then a chain of products, without a loop over tokens:

    P = probes @ C                      probes: the window's keys, then its queries
    R = gain * P + old @ U              what each recalls of the checkpoint, and of the journal's entries
    Y = mix @ (V - R)                   upper half: the window's own entries; lower half: what queries see of them
    out = R + Y                         lower half

where `mix` holds the inverse of the window's triangular system. If the journal holds a whole line, C is folded
first and stored; if the window passes a line, C is folded on the way and not stored, since what lies beyond
may yet be rejected. Either way it passes through the pool's dtype before it is used.

A checkpoint is stored [slot, head, key, value]. Products against a float32 checkpoint split it into three
bfloat16 parts: probes are bfloat16, so that every product is exact and only sums round. Cursors are read from
the device; nothing here waits for it or depends on a count that the host keeps. `docs/journal.md` has the measure.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..causal_conv.kernels import kept_input
from ..twins.kernels import follow


@triton.jit
def _pairwise(log_g, chain):
    """log_g [T], chain [T, T] (row t: t and its ancestors) -> [t, i]: the sum of log_g after i up to t."""
    nodes = tl.arange(0, log_g.shape[0])
    between = (
        chain[:, None, :] * chain.trans(1, 0)[None, :, :] * (nodes[None, :, None] != nodes[None, None, :])
    )
    return tl.sum(between * log_g[None, None, :], 2)


@triton.jit
def _exact(a, b):
    """a @ b in float32, where a is bfloat16 or both are float32."""
    if a.dtype == tl.bfloat16:
        if b.dtype == tl.bfloat16:
            return tl.dot(a, b)
        else:
            high = b.to(tl.bfloat16)
            rest = b - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
            return tl.dot(a, high, tl.dot(a, middle, tl.dot(a, low)))
    else:
        return tl.dot(a, b.to(tl.float32), input_precision="ieee")


@triton.jit
def _folded(state, gain, keys, weight, adds):
    """gain * state + keys^T @ (weight * adds), in the dtype of the state; keys [JP, K], adds [JP, BV]"""
    return (gain * state.to(tl.float32) + _exact(keys.trans(1, 0), weight[:, None] * adds)).to(state.dtype)


@triton.jit
def front(
    qk, log_g, beta,  # [tokens, 2, H, K], [tokens, HV] twice
    journal_k, journal_g,  # [rows, CAP, H, K], [rows, CAP, HV]
    old_out,  # [lanes, HV, 2 TP, JP]: of each held entry, what keys and queries recall
    gain_out,  # [lanes, HV, 2 TP]: decay of the checkpoint
    mix_out,  # [lanes, HV, 2 TP, TP]
    mid_out, mid_gain,  # [lanes, HV, JP], [lanes, HV]: weights of the fold that the window passes
    rows, counts, offsets, position, end_base,
    g_stride, beta_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr,
    CAP: tl.constexpr,
):  # fmt: skip
    head, lane = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + lane).to(tl.int64)
    count, first = tl.load(counts + lane).to(tl.int32), tl.load(offsets + lane).to(tl.int64)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    if row == 0:
        return
    HV: tl.constexpr = H * GROUP
    BOTH: tl.constexpr = 2 * TP
    held, line = (
        (at - end).to(tl.int32),
        (end + J - at).to(tl.int32),
    )  # entries; the token that passes the line
    places, probes, channels = tl.arange(0, JP), tl.arange(0, BOTH), tl.arange(0, K)
    nodes, padded = tl.arange(0, TP), tl.arange(0, BOTH)
    ring = journal_k + (row * CAP * H + head) * K

    old_k = tl.load(
        ring + ((end + places) % CAP)[:, None] * (H * K) + channels, mask=places[:, None] < held, other=0.0
    )
    is_key, token = probes < TP, probes % TP
    exists = token < count
    probe = tl.load(
        qk + (((first + token) * 2 + is_key) * H + head)[:, None] * K + channels,
        mask=exists[:, None],
        other=0.0,
    )
    of_key = (is_key & exists)[:, None]
    tl.store(ring + ((at + token) % CAP)[:, None] * (H * K) + channels, probe, mask=of_key)
    held_dots = _exact(probe, old_k.trans(1, 0))  # [2 TP, JP]
    # [2 TP, 2 TP]: against the window's keys, in the first TP columns
    own_dots = _exact(probe, tl.where(of_key, probe, 0.0).to(probe.dtype).trans(1, 0))
    by_query = tl.where(is_key, 1.0, scale)

    alive = nodes < count
    own_side = nodes < line
    chain = ((nodes[None, :] <= nodes[:, None]) & alive[None, :] & alive[:, None]).to(tl.float32)
    probe_chain = (padded[None, :] <= token[:, None]) & (padded[None, :] < count) & exists[:, None]
    probe_side = token < line
    for member in tl.static_range(GROUP):
        value_head = head * GROUP + member
        gates = journal_g + row * CAP * HV + value_head
        mine = lane.to(tl.int64) * HV + value_head
        own = tl.load(log_g + (first + nodes) * g_stride + value_head, mask=alive, other=0.0).to(tl.float32)
        tl.store(gates + ((at + nodes) % CAP) * HV, own, mask=alive)
        after = tl.load(gates + ((end + places + 1) % CAP) * HV, mask=places < held - 1, other=0.0)
        since = tl.cumsum(after, reverse=True)  # of each held entry, its decay up to the window
        total = tl.sum(tl.load(gates + ((end + places) % CAP) * HV, mask=places < held, other=0.0))

        wide = tl.load(log_g + (first + padded) * g_stride + value_head, mask=padded < count, other=0.0).to(
            tl.float32
        )  # the same numbers as `own`, laid out for probes
        same_side = probe_side[:, None] == (padded < line)[None, :]
        passed = tl.sum(
            tl.where(probe_chain & same_side, wide[None, :], 0.0), 1
        )  # since the start, or the line
        before = probe_side & exists
        gain = by_query * tl.exp(tl.where(probe_side, total + passed, passed))
        tl.store(gain_out + mine * BOTH + probes, tl.where(exists, gain, 0.0))
        weight_old = by_query[:, None] * tl.exp(since[None, :] + passed[:, None])
        old = tl.where(before[:, None] & (places < held)[None, :], weight_old * held_dots, 0.0)
        tl.store(old_out + (mine * BOTH + probes[:, None]) * JP + places, old)

        distance = _pairwise(own, chain)  # [TP, TP]
        if (line > 0) & (line < count):
            until = (line - 1).to(tl.int32)
            inside = tl.sum(tl.where(own_side, own, 0.0))
            tl.store(mid_gain + mine, tl.exp(total + inside))
            tl.store(mid_out + mine * JP + places, tl.exp(since + inside), mask=places < held)
            to_line = tl.sum(tl.where((nodes == until)[:, None], distance, 0.0), 0)
            tl.store(mid_out + mine * JP + held + nodes, tl.exp(to_line), mask=own_side)

        # system: row t holds what token t recalls of those before it
        seen = (chain > 0) & (own_side[:, None] == own_side[None, :])
        weight = tl.where(seen, tl.exp(distance), 0.0)
        key_dots, query_dots = _halves(own_dots, TP)
        strength = tl.load(beta + (first + nodes) * beta_stride + value_head, mask=alive, other=0.0).to(
            tl.float32
        )
        earlier = (nodes[None, :] < nodes[:, None]) & seen
        system = tl.where(earlier, strength[:, None] * weight * key_dots, 0.0)
        inverse = tl.where((nodes[:, None] == nodes[None, :]) & alive[:, None], 1.0, 0.0)
        for t in tl.static_range(1, TP):
            if t < count:
                line_t = tl.sum(tl.where((nodes == t)[:, None], system, 0.0), 0)
                solved = tl.sum(line_t[:, None] * inverse, 0)
                inverse -= tl.where((nodes == t)[:, None], solved[None, :], 0.0)
        inverse *= strength[None, :]
        queries = scale * weight * query_dots  # [TP, TP]
        seen_by_queries = tl.sum(queries[:, :, None] * inverse[None, :, :], 1)
        mix = mix_out + mine * BOTH * TP
        tl.store(mix + nodes[:, None] * TP + nodes, inverse)
        tl.store(mix + (TP + nodes[:, None]) * TP + nodes, seen_by_queries)


@triton.jit
def _halves(dots, TP: tl.constexpr):
    """[2 TP, 2 TP] -> the first TP columns of its upper and of its lower half."""
    upper_lower = tl.permute(tl.reshape(dots, (2, TP, 2, TP)), (1, 3, 2, 0))  # row, column, half, half
    first_columns, _ = tl.split(tl.permute(upper_lower, (0, 1, 3, 2)))
    return tl.split(first_columns)


@triton.jit
def main(
    qk, v, out,  # [tokens, 2, H, K], [tokens, HV, V] twice
    saved,  # [slots, HV, K, V]
    journal_k, journal_u, journal_g,  # [rows, CAP, H, K], [rows, CAP, HV, V], [rows, CAP, HV]
    old_in, gain_in, mix_in, mid_in, mid_gain,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    v_stride,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BK: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, FOLDS: tl.constexpr,
):  # fmt: skip
    """FOLDS: only lanes that fold or pass a line; otherwise the others, which then cost no registers for it."""
    block, value_head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target_slot = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    held, line = (at - end).to(tl.int32), (end + J - at).to(tl.int32)
    passes = (line > 0) & (line < count)
    folds = (end > begin) | passes
    if (row == 0) | (folds != FOLDS):
        return
    HV: tl.constexpr = H * GROUP
    BOTH: tl.constexpr = 2 * TP
    head = value_head // GROUP
    values = block * BV + tl.arange(0, BV)
    inside = values < V
    state = saved + (slot * HV + value_head) * K * V + values[None, :]
    mine = lane.to(tl.int64) * HV + value_head
    places, probes = tl.arange(0, JP), tl.arange(0, BOTH)
    is_key, token = probes < TP, probes % TP
    exists = token < count
    adds = journal_u + (row * CAP * HV + value_head) * V + values
    entry = (is_key & exists)[:, None] & inside[None, :]
    held_u = tl.load(
        adds + ((end + places) % CAP)[:, None] * (HV * V),
        mask=(places < held)[:, None] & inside[None, :],
        other=0.0,
    )
    value = tl.load(v + (first + token)[:, None] * v_stride + value_head * V + values, mask=entry, other=0.0)
    old = tl.load(old_in + (mine * BOTH + probes[:, None]) * JP + places)
    gain = tl.load(gain_in + mine * BOTH + probes)
    mix = tl.load(
        mix_in + (mine * BOTH + probes[:, None]) * TP + probes[None, :], mask=is_key[None, :], other=0.0
    )
    probe = qk + (((first + token) * 2 + is_key) * H + head)[:, None] * K
    keys = journal_k + (row * CAP * H + head) * K
    real = (places < J)[:, None]
    product = tl.zeros((BOTH, BV), tl.float32)
    if FOLDS:
        known = begin > 0
        if end > begin:
            place = ((begin + places) % CAP)[:, None]
            gates = journal_g + row * CAP * HV + value_head
            after = tl.load(gates + ((begin + places + 1) % CAP) * HV, mask=places < J - 1, other=0.0)
            whole = tl.sum(tl.load(gates + ((begin + places) % CAP) * HV, mask=places < J, other=0.0))
            weight = tl.exp(tl.cumsum(after, reverse=True))
            add = tl.load(adds + place * (HV * V), mask=real & inside[None, :], other=0.0)
            target = saved + (target_slot * HV + value_head) * K * V + values[None, :]
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :] & known, other=0.0)
                key = tl.load(keys + place * (H * K) + channels, mask=real, other=0.0)
                part = _folded(part, tl.exp(whole), key, weight, add)
                tl.store(target + channels[:, None] * V, part, mask=inside[None, :])
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
            state = target
            known = True
        elif known:
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :], other=0.0)
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
        recalled = gain[:, None] * product + tl.dot(old, held_u, input_precision="tf32x3")
        if passes:
            missing = tl.where((token < line)[:, None] & entry, value.to(tl.float32) - recalled, 0.0)
            fresh = tl.dot(mix, missing, input_precision="tf32x3")
            tl.store(
                adds + ((at + token) % CAP)[:, None] * (HV * V), fresh, mask=entry & (token < line)[:, None]
            )
            tl.debug_barrier()
            place = ((end + places) % CAP)[:, None]
            weight = tl.load(mid_in + mine * JP + places, mask=places < J, other=0.0)
            add = tl.load(adds + place * (HV * V), mask=real & inside[None, :], other=0.0)
            product = tl.zeros((BOTH, BV), tl.float32)
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :] & known, other=0.0)
                key = tl.load(keys + place * (H * K) + channels, mask=real, other=0.0)
                part = _folded(part, tl.load(mid_gain + mine), key, weight, add)
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
            recalled = tl.where((token < line)[:, None], recalled, gain[:, None] * product)
    else:
        if begin > 0:
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :], other=0.0)
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
        recalled = gain[:, None] * product + tl.dot(old, held_u, input_precision="tf32x3")
    missing = tl.where(entry, value.to(tl.float32) - recalled, 0.0)
    found = tl.dot(mix, missing, input_precision="tf32x3")
    tl.store(adds + ((at + token) % CAP)[:, None] * (HV * V), found, mask=entry)
    tl.store(
        out + ((first + token)[:, None] * HV + value_head) * V + values,
        recalled + found,
        mask=(~is_key & exists)[:, None] & inside[None, :],
    )


@triton.jit
def front_one(
    qk, log_g, beta,  # [tokens, 2, H, K], [tokens, HV] twice
    journal_k, journal_g,  # [rows, CAP, H, K], [rows, CAP, HV]
    old_out,  # [lanes, HV, 2, JP]: of each held entry, what the key and the query recall
    mix_out,  # [lanes, HV, 4]: decay for either, strength of the entry, what the query sees of it
    rows, counts, offsets, position, end_base,
    g_stride, beta_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """As `front`, for windows of one token, whose triangular system is a number."""
    role, lane = tl.program_id(0), tl.program_id(1)
    HV: tl.constexpr = H * GROUP
    row = tl.load(rows + lane).to(tl.int64)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    count, token = tl.load(counts + lane), tl.load(offsets + lane).to(tl.int64)
    channels, places = tl.arange(0, K), tl.arange(0, JP)
    if (row > 0) & (count > 0):
        held = (at - end).to(tl.int32)
        filled = places < held
        ring = journal_k + (row * CAP * H + role) * K
        old = tl.load(
            ring + ((end + places) % CAP)[:, None] * (H * K) + channels, mask=filled[:, None], other=0.0
        ).to(tl.float32)
        query = tl.load(qk + (token * 2 * H + role) * K + channels)
        key = tl.load(qk + ((token * 2 + 1) * H + role) * K + channels)
        tl.store(ring + (at % CAP) * (H * K) + channels, key)
        for member in tl.static_range(GROUP):
            value_head = role * GROUP + member
            own = tl.load(log_g + token * g_stride + value_head).to(tl.float32)
            strength = tl.load(beta + token * beta_stride + value_head).to(tl.float32)
            _coefficients_one(
                key, query, old, own, strength, row, lane, value_head, at, end, scale,
                journal_g, old_out, mix_out, HV, JP, CAP,
            )  # fmt: skip


@triton.jit
def _coefficients_one(
    key, query, old, own, strength, row, lane, value_head, at, end, scale, journal_g, old_out, mix_out,
    HV: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """What depends on keys and gates alone, for one value head; old [JP, K]: the keys held. Appends the gate."""
    places = tl.arange(0, JP)
    held = (at - end).to(tl.int32)
    key, query = key.to(tl.float32), query.to(tl.float32)
    key_dots, query_dots = tl.sum(old * key[None, :], 1), scale * tl.sum(old * query[None, :], 1)
    gates = journal_g + row * CAP * HV + value_head
    mine = lane.to(tl.int64) * HV + value_head
    after = tl.load(gates + ((end + places + 1) % CAP) * HV, mask=places < held - 1, other=0.0)
    gate = tl.load(gates + ((end + places) % CAP) * HV, mask=places < held, other=0.0)
    tl.store(gates + (at % CAP) * HV, own)
    weight = tl.exp(tl.cumsum(after, reverse=True) + own)
    tl.store(old_out + mine * 2 * JP + places, weight * key_dots)
    tl.store(old_out + (mine * 2 + 1) * JP + places, weight * query_dots)
    decay = tl.exp(tl.sum(gate) + own)
    tl.store(mix_out + mine * 4, decay)
    tl.store(mix_out + mine * 4 + 1, scale * decay)
    tl.store(mix_out + mine * 4 + 2, strength)
    tl.store(mix_out + mine * 4 + 3, scale * tl.sum(key * query))


@triton.jit
def front_token(
    qkv, a, b, conv_weight, a_log, dt_bias, conv_saved, conv_ring,
    journal_k, journal_g, qk_out, v_out, old_out, mix_out,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    qkv_stride, a_stride, b_stride, C, beta_scale, scale, eps,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
    W: tl.constexpr, RING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """All that stands before the rule, for windows of one token: convolution, activation, norms, gates, and what
    `front_one` does. Programs below H take a key head and its gates, the others K channels of the values."""
    role, lane = tl.program_id(0), tl.program_id(1)
    HV: tl.constexpr = H * GROUP
    row = tl.load(rows + lane).to(tl.int64)
    at, begin, end = tl.load(position + lane), tl.load(base + lane), tl.load(end_base + lane)
    count, token = tl.load(counts + lane), tl.load(offsets + lane).to(tl.int64)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    follow(EARLY)
    if row == 0:  # asked when all is on its way: a wait costs more than these loads
        return
    channels, places = tl.arange(0, K), tl.arange(0, JP)
    kind: tl.constexpr = qk_out.dtype.element_ty
    if role >= H:
        mine = (H + role) * K + channels
        value = _convolved(
            qkv, conv_weight, conv_saved, conv_ring, mine, mine < C, row, token, at, begin, end, slot, target, count,
            qkv_stride, C, W, RING,
        )  # fmt: skip
        place = token * (C - 2 * H * K) + mine - 2 * H * K
        tl.store(v_out + place, (value * tl.sigmoid(value)).to(kind), mask=(mine < C) & (count > 0))
    else:
        ring = journal_k + (row * CAP * H + role) * K
        filled = places < (at - end).to(tl.int32)
        old = tl.load(
            ring + ((end + places) % CAP)[:, None] * (H * K) + channels, mask=filled[:, None], other=0.0
        ).to(tl.float32)
        query = _convolved(
            qkv, conv_weight, conv_saved, conv_ring, role * K + channels, channels < K, row, token, at, begin, end,
            slot, target, count, qkv_stride, C, W, RING,
        )  # fmt: skip
        key = _convolved(
            qkv, conv_weight, conv_saved, conv_ring, (H + role) * K + channels, channels < K, row, token, at, begin,
            end, slot, target, count, qkv_stride, C, W, RING,
        )  # fmt: skip
        if count > 0:
            probe, written = _unit(query, eps, kind), _unit(key, eps, kind)
            tl.store(qk_out + (token * 2 * H + role) * K + channels, probe)
            tl.store(qk_out + ((token * 2 + 1) * H + role) * K + channels, written)
            tl.store(ring + (at % CAP) * (H * K) + channels, written)
            for member in tl.static_range(GROUP):
                value_head = role * GROUP + member
                raw = tl.load(a + token * a_stride + value_head).to(tl.float32) + tl.load(
                    dt_bias + value_head
                )
                soft = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
                own = -tl.exp(tl.load(a_log + value_head)) * soft
                strength = beta_scale * tl.sigmoid(tl.load(b + token * b_stride + value_head).to(tl.float32))
                _coefficients_one(
                    written, probe, old, own, strength, row, lane, value_head, at, end, scale,
                    journal_g, old_out, mix_out, HV, JP, CAP,
                )  # fmt: skip


@triton.jit
def _unit(x, eps, kind: tl.constexpr):
    """silu, then over the length; rounded after either."""
    active = (x * tl.sigmoid(x)).to(kind).to(tl.float32)
    return (active * tl.rsqrt(tl.sum(active * active) + eps)).to(kind)


@triton.jit
def _convolved(
    x, weight, saved, ring, channels, inside, row, token, at, begin, end, slot, target, count, stride, C,
    W: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The convolution of one token, as `ops.causal_conv.kernels.windows` has it, in these channels."""
    acc = tl.zeros(channels.shape, tl.float32)
    for j in tl.static_range(W - 1):
        where = at - (W - 1) + j
        value = kept_input(saved, ring, row, slot, begin, where, channels, inside, C, W, CAP)
        acc += value * tl.load(weight + channels * W + j, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(x + token * stride + channels, mask=inside & (count > 0), other=0.0)
    acc += own.to(tl.float32) * tl.load(weight + channels * W + W - 1, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        ring + (row * CAP + at % CAP) * C + channels, own.to(ring.dtype.element_ty), mask=inside & (count > 0)
    )
    if end > begin:
        for j in tl.static_range(W - 1):
            value = kept_input(saved, ring, row, slot, begin, end - (W - 1) + j, channels, inside, C, W, CAP)
            place = saved + (target * (W - 1) + j) * C + channels
            tl.store(place, value.to(saved.dtype.element_ty), mask=inside)
    return acc


@triton.jit
def main_one(
    qk, v, out, saved, journal_k, journal_u, journal_g, old_in, mix_in,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, lanes, v_stride,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, LANES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `main`, for windows of one token. LANES > 0: only lanes that fold, so many to a program; 0: others; -1: all.

    Few lanes fold in a step. In a launch of their own they cost the others no registers, and run beside them; with
    few lanes in all, another launch costs more than registers.
    """
    block, value_head, third = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if LANES <= 0:
        row, count = tl.load(rows + third).to(tl.int64), tl.load(counts + third)
        begin, end, at = tl.load(base + third), tl.load(end_base + third), tl.load(position + third)
        slot, token = tl.load(read_slot + third).to(tl.int64), tl.load(offsets + third).to(tl.int64)
        values = block * BV + tl.arange(0, BV)
        wanted = (row > 0) & ((end == begin) | (LANES < 0)) & ((count > 0) | (end > begin))
        inside = (values < V) & wanted
        state = _checkpoint(saved, slot, value_head, values, inside & (begin > 0), H * GROUP, K, V)
        follow(EARLY)
        if not wanted:
            return
        if LANES < 0:  # noqa: SIM102  which is known when this is compiled, and the other is not
            if end > begin:
                state = _fold_lane(
                    state, row, begin, tl.load(write_slot + third).to(tl.int64), value_head, values, inside,
                    saved, journal_k, journal_u, journal_g, H, GROUP, K, V, J, JP, CAP,
                )  # fmt: skip
        if count > 0:
            _absorb(
                state.to(tl.float32), third, row, token, at, end, value_head, values, inside,
                qk, v, out, journal_u, old_in, mix_in, v_stride, H, GROUP, K, V, JP, CAP,
            )  # fmt: skip
    else:
        some = tl.arange(0, LANES)
        lane = third * LANES + some
        real = lane < lanes
        all_rows = tl.load(rows + lane, mask=real, other=0).to(tl.int64)
        begins, ends = tl.load(base + lane, mask=real, other=0), tl.load(end_base + lane, mask=real, other=0)
        folding = (all_rows > 0) & (ends > begins)
        values = block * BV + tl.arange(0, BV)
        inside = values < V
        for i in range(LANES):
            if tl.sum(tl.where((some == i) & folding, 1, 0)) > 0:
                this = third * LANES + i
                row, begin = tl.load(rows + this).to(tl.int64), tl.load(base + this)
                end, at, count = tl.load(end_base + this), tl.load(position + this), tl.load(counts + this)
                token, slot = tl.load(offsets + this).to(tl.int64), tl.load(read_slot + this).to(tl.int64)
                state = _checkpoint(saved, slot, value_head, values, inside & (begin > 0), H * GROUP, K, V)
                state = _fold_lane(
                    state, row, begin, tl.load(write_slot + this).to(tl.int64), value_head, values, inside,
                    saved, journal_k, journal_u, journal_g, H, GROUP, K, V, J, JP, CAP,
                )  # fmt: skip
                if count > 0:
                    _absorb(
                        state.to(tl.float32), this, row, token, at, end, value_head, values, inside,
                        qk, v, out, journal_u, old_in, mix_in, v_stride, H, GROUP, K, V, JP, CAP,
                    )  # fmt: skip


@triton.jit
def _fold_lane(
    state, row, begin, target, value_head, values, inside,
    saved, journal_k, journal_u, journal_g,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """A line of a lane's journal into its checkpoint, which is stored as well."""
    HV: tl.constexpr = H * GROUP
    places, channels = tl.arange(0, JP), tl.arange(0, K)
    place = ((begin + places) % CAP)[:, None]
    keys = tl.load(
        journal_k + (row * CAP * H + value_head // GROUP) * K + place * (H * K) + channels[None, :],
        mask=(places < J)[:, None],
        other=0.0,
    )
    adds = tl.load(
        journal_u + (row * CAP * HV + value_head) * V + place * (HV * V) + values[None, :],
        mask=(places < J)[:, None] & inside[None, :],
        other=0.0,
    )
    gates = journal_g + row * CAP * HV + value_head
    after = tl.load(gates + ((begin + places + 1) % CAP) * HV, mask=places < J - 1, other=0.0)
    whole = tl.sum(tl.load(gates + ((begin + places) % CAP) * HV, mask=places < J, other=0.0))
    state = _folded(state, tl.exp(whole), keys, tl.exp(tl.cumsum(after, reverse=True)), adds)
    tl.store(
        saved + (target * HV + value_head) * K * V + channels[:, None] * V + values[None, :],
        state,
        mask=inside[None, :],
    )
    return state


@triton.jit
def _checkpoint(saved, slot, head, values, known, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr):
    """[K, BV] of a slot, zero where it is not known"""
    tile = tl.arange(0, K)[:, None] * V + values[None, :]
    return tl.load(saved + (slot * HV + head) * K * V + tile, mask=known[None, :], other=0.0)


@triton.jit
def _absorb(
    state, lane, row, token, at, end, value_head, values, inside,
    qk, v, out, journal_u, old_in, mix_in, v_stride,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """One token of one lane; all loads are asked for before any is waited for."""
    HV: tl.constexpr = H * GROUP
    head, mine = value_head // GROUP, lane.to(tl.int64) * HV + value_head
    channels, places = tl.arange(0, K), tl.arange(0, JP)
    key = tl.load(qk + ((token * 2 + 1) * H + head) * K + channels)
    query = tl.load(qk + (token * 2 * H + head) * K + channels)
    adds = journal_u + (row * CAP * HV + value_head) * V + values
    old_u = tl.load(
        adds[None, :] + ((end + places) % CAP)[:, None] * (HV * V),
        mask=(places < at - end)[:, None] & inside[None, :],
        other=0.0,
    )
    to_key = tl.load(old_in + mine * 2 * JP + places)
    to_query = tl.load(old_in + (mine * 2 + 1) * JP + places)
    value = tl.load(v + token * v_stride + value_head * V + values, mask=inside, other=0.0).to(tl.float32)
    decay, scaled = tl.load(mix_in + mine * 4), tl.load(mix_in + mine * 4 + 1)
    strength, seen = tl.load(mix_in + mine * 4 + 2), tl.load(mix_in + mine * 4 + 3)
    recalled = decay * tl.sum(state * key.to(tl.float32)[:, None], 0) + tl.sum(to_key[:, None] * old_u, 0)
    result = scaled * tl.sum(state * query.to(tl.float32)[:, None], 0) + tl.sum(to_query[:, None] * old_u, 0)
    fresh = strength * (value - recalled)
    tl.store(adds + (at % CAP) * (HV * V), fresh, mask=inside)
    tl.store(out + (token * HV + value_head) * V + values, result + seen * fresh, mask=inside)
