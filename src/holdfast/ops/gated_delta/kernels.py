"""Gated delta rule over windows, in Triton: the checkpoint is read once, and written only by a fold.

`front` runs for every (lane, key head): it appends the window's keys and gates to the journal and reduces all
that depends on keys and gates alone to small matrices. `main` runs for every (lane, value head, block of value
channels) and is then a chain of products, without a loop over tokens:

    P = probes @ C                      probes: the window's keys, then its queries
    R = gain * P + old @ U              what each recalls of the checkpoint, and of the journal's entries
    Y = mix @ (V - R)                   upper half: the window's own entries; lower half: what queries see of them
    out = R + Y                         lower half

where `mix` holds the inverse of the window's triangular system. If the journal holds a whole line, C is folded
first and stored, and passes through the pool's dtype before it is used. If that rounds and the window passes a
line, it STOPS there: C is folded on the way and not stored, since what lies beyond may yet be rejected. Of a TREE's
nodes each sees its ancestors.

A checkpoint is stored [slot, head, key, value]. Products against a float32 checkpoint split it into three
bfloat16 parts: probes are bfloat16, so that every product is exact and only sums round. Cursors are read from
the device; nothing here waits for it or depends on a count that the host keeps. `docs/journal.md` has the measure.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import BEYOND, follow, sees
from . import checkpoint_kernels as checkpoints


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
        if b.dtype == tl.bfloat16 or b.dtype.primitive_bitwidth == 8:
            return tl.dot(a, b.to(tl.bfloat16))
        else:
            high = b.to(tl.bfloat16)
            rest = b - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
            return tl.dot(a, high, tl.dot(a, middle, tl.dot(a, low)))
    else:
        return tl.dot(a, b.to(tl.float32), input_precision="ieee")


@triton.jit
def with_entries(state, gain, keys, weight, adds):
    """gain * state + keys^T @ (weight * adds), in float32; keys [JP, K], adds [JP, BV]"""
    return gain * state + _exact(keys.trans(1, 0), weight[:, None] * adds)


@triton.jit
def front(
    qk, log_g, beta,  # [tokens, 2, H, K], [tokens, HV] twice
    journal_k, journal_g,  # [rows, CAP, H, K], [rows, CAP, HV]
    old_out,  # [lanes, HV, 2 TP, JP]: of each held entry, what keys and queries recall
    gain_out,  # [lanes, HV, 2 TP]: decay of the checkpoint
    mix_out,  # [lanes, HV, 2 TP, TP]
    mid_out, mid_gain,  # [lanes, HV, JP], [lanes, HV]: weights of the fold that the window passes
    rows, counts, offsets, position, end_base, tree, tree_size,
    g_stride, beta_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr,
    CAP: tl.constexpr, TREE: tl.constexpr, STOPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    head, lane = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + lane).to(tl.int64)
    count, first = tl.load(counts + lane).to(tl.int32), tl.load(offsets + lane).to(tl.int64)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    follow(EARLY)
    if row == 0:
        return
    HV: tl.constexpr = H * GROUP
    BOTH: tl.constexpr = 2 * TP
    held = (at - end).to(tl.int32)
    line = J - held if STOPS else tl.full((), BEYOND, tl.int32)  # the token that passes it
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
    real, probed = alive[None, :] & alive[:, None], (padded < count)[None, :] & exists[:, None]
    if TREE:
        chain = sees(tree, tree_size, lane, nodes[:, None], nodes[None, :], real).to(tl.float32)
        probe_chain = sees(tree, tree_size, lane, token[:, None], padded[None, :], probed)
    else:
        chain = ((nodes[None, :] <= nodes[:, None]) & real).to(tl.float32)
        probe_chain = (padded[None, :] <= token[:, None]) & probed
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
        if TP < 16:  # no matrix product is narrower
            seen_by_queries = tl.sum(queries[:, :, None] * inverse[None, :, :], 1)
        else:  # and of a sum as wide, Triton would make one of ten bits
            seen_by_queries = tl.dot(queries, inverse, input_precision="tf32x3")
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
def _scale_of_folded(
    state, scale, keys, gain, weight, adds, inside, known, real,
    kind: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Of the whole state that `with_entries` makes in parts of BK keys; before any of these can be rounded."""
    greatest = tl.zeros((1, scale.shape[0]), tl.float32)
    if kind.primitive_bitwidth == 8:
        for channel in range(0, K, BK):
            channels = channel + tl.arange(0, BK)
            part = tl.load(state + channels[:, None] * V, mask=inside[None, :] & known, other=0.0)
            key = tl.load(keys + channels, mask=real, other=0.0)
            folded = with_entries(checkpoints.wide(part, scale), gain, key, weight, adds)
            greatest = tl.maximum(
                greatest, checkpoints.greatest(folded)[None, :], propagate_nan=tl.PropagateNan.ALL
            )
    return checkpoints.scale_for(greatest, kind)


NONE = tl.constexpr(0)
FOLDING = tl.constexpr(1)
ALL = tl.constexpr(2)


@triton.jit
def main(
    qk, v, out,  # [tokens, 2, H, K], [tokens, HV, V] twice
    saved, scales,  # [slots, HV, K, V], and of numbers of a byte [slots, HV, 1, V]
    journal_k, journal_u, journal_g,  # [rows, CAP, H, K], [rows, CAP, HV, V], [rows, CAP, HV]
    old_in, gain_in, mix_in, mid_in, mid_gain,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    v_stride,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    BK: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, FOLDS: tl.constexpr,
    STOPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """FOLDS: only lanes that fold or pass a line (FOLDING); the others, which then cost no registers for it (NONE);
    or all of them (ALL)."""
    block, value_head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target_slot = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    held = (at - end).to(tl.int32)
    line = J - held if STOPS else tl.full((), BEYOND, tl.int32)
    passes = (line > 0) & (line < count)
    folds = (end > begin) | passes
    follow(EARLY)
    if row == 0:
        return
    if FOLDS != ALL:  # noqa: SIM102  which is known when this is compiled
        if folds != (FOLDS == FOLDING):
            return
    kind: tl.constexpr = saved.dtype.element_ty
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
    scale = checkpoints.load_scale(scales, slot, value_head, values, inside & (begin > 0), HV, V, kind)
    if FOLDS != NONE:
        known = begin > 0
        if end > begin:
            place = ((begin + places) % CAP)[:, None]
            gates = journal_g + row * CAP * HV + value_head
            after = tl.load(gates + ((begin + places + 1) % CAP) * HV, mask=places < J - 1, other=0.0)
            whole = tl.sum(tl.load(gates + ((begin + places) % CAP) * HV, mask=places < J, other=0.0))
            weight = tl.exp(tl.cumsum(after, reverse=True))
            add = tl.load(adds + place * (HV * V), mask=real & inside[None, :], other=0.0)
            target = saved + (target_slot * HV + value_head) * K * V + values[None, :]
            line_keys, gain_line = keys + place * (H * K), tl.exp(whole)
            next_scale = _scale_of_folded(
                state, scale, line_keys, gain_line, weight, add, inside, known, real, kind, K, V, BK
            )
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :] & known, other=0.0)
                key = tl.load(line_keys + channels, mask=real, other=0.0)
                part = checkpoints.narrow(
                    with_entries(checkpoints.wide(part, scale), gain_line, key, weight, add), next_scale, kind
                )
                tl.store(target + channels[:, None] * V, part, mask=inside[None, :])
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
            checkpoints.store_scale(scales, target_slot, value_head, values, next_scale, inside, HV, V, kind)
            state, scale = target, next_scale
            known = True
        elif known:
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :], other=0.0)
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
        recalled = gain[:, None] * (product * scale[None, :]) + tl.dot(old, held_u, input_precision="tf32x3")
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
            line_keys, gain_line = keys + place * (H * K), tl.load(mid_gain + mine)
            next_scale = _scale_of_folded(
                state, scale, line_keys, gain_line, weight, add, inside, known, real, kind, K, V, BK
            )
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :] & known, other=0.0)
                key = tl.load(line_keys + channels, mask=real, other=0.0)
                part = checkpoints.narrow(
                    with_entries(checkpoints.wide(part, scale), gain_line, key, weight, add), next_scale, kind
                )
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
            beyond = gain[:, None] * (product * next_scale[None, :])
            recalled = tl.where((token < line)[:, None], recalled, beyond)
    else:
        if begin > 0:
            for channel in range(0, K, BK):
                channels = channel + tl.arange(0, BK)
                part = tl.load(state + channels[:, None] * V, mask=inside[None, :], other=0.0)
                product += _exact(tl.load(probe + channels, mask=exists[:, None], other=0.0), part)
        recalled = gain[:, None] * (product * scale[None, :]) + tl.dot(old, held_u, input_precision="tf32x3")
    missing = tl.where(entry, value.to(tl.float32) - recalled, 0.0)
    found = tl.dot(mix, missing, input_precision="tf32x3")
    tl.store(adds + ((at + token) % CAP)[:, None] * (HV * V), found, mask=entry)
    tl.store(
        out + ((first + token)[:, None] * HV + value_head) * V + values,
        recalled + found,
        mask=(~is_key & exists)[:, None] & inside[None, :],
    )
