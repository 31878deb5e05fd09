"""Delta rule with a gate for every channel of a key, in Triton: the checkpoint is read once a window, and written
only by a fold.

`front` runs for every (lane, head). It appends the window's keys and gates to the journal and reduces all that
depends on keys and gates alone to small matrices: probes (keys and queries, decayed as they meet the checkpoint),
what they recall of held entries, and the inverse of the window's triangular system. Decays stand inside the dot
products of keys, so they are taken token by token, from distances that only grow. `main` runs for every (lane,
head, block of value channels) and is then a chain of products:

    R = probes @ C + old @ U                     what each recalls of the checkpoint, and of the journal's entries
    Y = mix @ (beta * (V - R))                   upper half: the window's own entries; lower half: what queries see
    out = R + Y                                  lower half

Folds, lines passed, trees and rounding are as for the gated delta rule.

A checkpoint is stored [slot, head, key, value]. Bytes per lane and layer of 32 heads of 128 x 128,
float32, J = 16: the checkpoint is 2 MiB, an entry 40 KiB. Decode reads 2 MiB + 7.5 entries, writes an entry, and
2 MiB in one step of 16: at batch 256 0.66 GB, 154 us at 4.26 TB/s; read-modify-write moves 1.07 GB.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import BEYOND, back, product, sees


@triton.jit
def own_entries(apart, keys, inverse, t, seen, key, query, strength):
    """One token more of a window: what it and its query see of the window's own entries.

    apart    [TP, K]: of each token that is seen, the sum of gates after it up to this one
    inverse  [TP, TP]: of the triangular system, rows before t
    """
    nodes = tl.arange(0, keys.shape[0])
    decayed = tl.where(seen[:, None], tl.exp(apart) * keys, 0.0)
    recalls = tl.where(nodes < t, strength * tl.sum(decayed * key[None, :], 1), 0.0)
    solved = tl.where(nodes == t, 1.0, 0.0) - tl.sum(recalls[:, None] * inverse, 0)
    inverse = tl.where((nodes == t)[:, None], solved[None, :], inverse)
    by_query = tl.sum(tl.sum(decayed * query[None, :], 1)[:, None] * inverse, 0)
    return inverse, solved, by_query


@triton.jit
def passed_on(apart, t, gate):
    """The same sums when one token more has come, whose own is zero."""
    return tl.where((tl.arange(0, apart.shape[0]) < t)[:, None], apart + gate[None, :], 0.0)


@triton.jit
def front(
    q, k, log_g, beta,  # [tokens, H, K] three times, [tokens, H]
    journal_k, journal_g,  # [rows, CAP, H, K]
    probes_out,  # [lanes, H, 2 TP, K]
    old_out,  # [lanes, H, 2 TP, JP]: of each held entry, what keys and queries recall
    mix_out,  # [lanes, H, 2 TP, TP]
    rows, counts, offsets, position, end_base, tree, tree_size,
    q_stride, k_stride, g_stride, beta_stride,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr,
    CAP: tl.constexpr, TREE: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    head, lane = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    first = tl.load(offsets + lane).to(tl.int64)
    if (row == 0) | (count == 0):
        return
    held = (at - end).to(tl.int32)
    line = J - held if STOPS else tl.full((), BEYOND, tl.int32)  # the token that passes it
    places, nodes, channels = tl.arange(0, JP), tl.arange(0, TP), tl.arange(0, KP)
    inner, mine = channels < K, lane.to(tl.int64) * H + head
    ring_k = journal_k + (row * CAP * H + head) * K + channels
    ring_g = journal_g + (row * CAP * H + head) * K + channels
    given_k = k + first * k_stride + head * K + channels
    given_q = q + first * q_stride + head * K + channels
    given_g = log_g + first * g_stride + head * K + channels

    here, next = back(at, JP, CAP)[:, None], back(at + 1, JP, CAP)[:, None]
    filled = (places < held)[:, None] & inner[None, :]
    followed = ((places > 0) & (places < held))[:, None] & inner[None, :]
    held_keys = tl.load(ring_k[None, :] + here * (H * K), mask=filled, other=0.0).to(tl.float32)
    after = tl.load(ring_g[None, :] + next * (H * K), mask=followed, other=0.0)
    oldest = tl.load(ring_g + (end % CAP) * (H * K), mask=inner & (held > 0), other=0.0)
    own = (nodes < count)[:, None] & inner[None, :]
    own_keys = tl.load(given_k[None, :] + nodes[:, None] * k_stride, mask=own, other=0.0)
    own_gates = tl.load(given_g[None, :] + nodes[:, None] * g_stride, mask=own, other=0.0)
    ring = ((at + nodes) % CAP)[:, None] * (H * K)
    tl.store(ring_k[None, :] + ring, own_keys, mask=own)
    tl.store(ring_g[None, :] + ring, own_gates, mask=own)

    keys = own_keys.to(tl.float32)
    since = tl.cumsum(after, 0)
    total = oldest + tl.sum(after, 0)
    apart, inverse = tl.zeros((TP, KP), tl.float32), tl.zeros((TP, TP), tl.float32)
    passed = tl.zeros(
        (KP,), tl.float32
    )  # gates of what a token sees of its window, since the line if it is beyond
    probes = probes_out + mine * 2 * TP * K + channels
    old, mix = old_out + mine * 2 * TP * JP + places, mix_out + mine * 2 * TP * TP + nodes
    for t in range(count):
        gate = tl.load(given_g + t * g_stride, mask=inner, other=0.0)
        key = tl.load(given_k + t * k_stride, mask=inner, other=0.0).to(tl.float32)
        query = tl.load(given_q + t * q_stride, mask=inner, other=0.0).to(tl.float32)
        strength = tl.load(beta + (first + t) * beta_stride + head).to(tl.float32)
        if TREE:
            seen = sees(tree, tree_size, lane, t, nodes, nodes <= t)
            apart, passed = tl.zeros((TP, KP), tl.float32), tl.zeros((KP,), tl.float32)
            for node in range(t + 1):
                if sees(tree, tree_size, lane, t, node, True):
                    step = tl.load(given_g + node * g_stride, mask=inner, other=0.0)
                    apart, passed = passed_on(apart, node, step), passed + step
        else:
            seen = (nodes <= t) & ((nodes >= line) | (t < line))
            apart, passed = passed_on(apart, t, gate), tl.where(t == line, 0.0, passed) + gate
        inverse, solved, by_query = own_entries(apart, keys, inverse, t, seen, key, query, strength)
        decayed = tl.exp(since + passed[None, :]) * held_keys  # of no use beyond the line
        gain = tl.exp(tl.where(t < line, total, 0.0) + passed)
        tl.store(mix + t * TP, solved)
        tl.store(mix + (TP + t) * TP, by_query)
        tl.store(old + t * JP, tl.sum(decayed * key[None, :], 1))
        tl.store(old + (TP + t) * JP, tl.sum(decayed * query[None, :], 1))
        tl.store(probes + t * K, gain * key, mask=inner)
        tl.store(probes + (TP + t) * K, gain * query, mask=inner)


@triton.jit
def line_of(
    ring_k, ring_g, line, channels,
    H: tl.constexpr, K: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Of a whole line's entries: their decay [channels], and their keys as they stand after it [JP, channels]."""
    places = tl.arange(0, JP)
    here, next = back(line + J, JP, CAP)[:, None] * (H * K), back(line + J + 1, JP, CAP)[:, None] * (H * K)
    columns, inner = channels[None, :], (channels < K)[None, :]
    keys = tl.load(ring_k + here + columns, mask=(places < J)[:, None] & inner, other=0.0).to(tl.float32)
    after = tl.load(ring_g + next + columns, mask=((places > 0) & (places < J))[:, None] & inner, other=0.0)
    oldest = tl.load(ring_g + (line % CAP) * (H * K) + channels, mask=channels < K, other=0.0)
    return tl.exp(oldest + tl.sum(after, 0)), tl.exp(tl.cumsum(after, 0)) * keys


@triton.jit
def with_line(state, decay, keys, adds):
    """decay * state + keys^T @ adds, in the dtype of the state; keys [JP, BK], adds [JP, BV]"""
    return (decay[:, None] * state.to(tl.float32) + product(keys.trans(1, 0), adds)).to(state.dtype)


@triton.jit
def _recalled(
    probes, state, known, exists, inside,
    K: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """[2 TP, BV]: probes @ state, both by pointers; nothing is read of a state that is not known."""
    found = tl.zeros((exists.shape[0], inside.shape[0]), tl.float32)
    if known:
        for channel in range(0, KP, BK):
            channels = channel + tl.arange(0, BK)
            inner = channels < K
            part = tl.load(state + channels[:, None] * V, mask=inner[:, None] & inside[None, :], other=0.0)
            probe = tl.load(probes + channels[None, :], mask=exists[:, None] & inner[None, :], other=0.0)
            found += product(probe, part)
    return found


@triton.jit
def _recalled_folded(
    probes, state, known, target, ring_k, ring_g, ring_u, line, exists, inside,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr, V: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The same after the line's entries are folded into the state; KEPT: which goes to `target`."""
    found = tl.zeros((exists.shape[0], inside.shape[0]), tl.float32)
    places = tl.arange(0, JP)
    adds = tl.load(
        ring_u + back(line + J, JP, CAP)[:, None] * (H * V),
        mask=(places < J)[:, None] & inside[None, :],
        other=0.0,
    )
    for channel in range(0, KP, BK):
        channels = channel + tl.arange(0, BK)
        inner = channels < K
        tile = inner[:, None] & inside[None, :]
        part = tl.load(state + channels[:, None] * V, mask=tile & known, other=0.0)
        decay, keys = line_of(ring_k, ring_g, line, channels, H, K, J, JP, CAP)
        part = with_line(part, decay, keys, adds)
        if KEPT:
            tl.store(target + channels[:, None] * V, part, mask=tile)
        probe = tl.load(probes + channels[None, :], mask=exists[:, None] & inner[None, :], other=0.0)
        found += product(probe, part)
    return found


@triton.jit
def main(
    v, beta, out,  # [tokens, H, V], [tokens, H], [tokens, H, V]
    saved,  # [slots, H, K, V]
    journal_k, journal_u, journal_g, probes_in, old_in, mix_in,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, v_stride, beta_stride,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, BK: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, FOLDS: tl.constexpr,
    STOPS: tl.constexpr,
):  # fmt: skip
    """FOLDS: only lanes that fold or pass a line; otherwise the others, which then cost no registers for it."""
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target_slot = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    held = (at - end).to(tl.int32)
    line = J - held if STOPS else tl.full((), BEYOND, tl.int32)
    passes = count > line
    if (row == 0) | (((end > begin) | passes) != FOLDS):
        return
    BOTH: tl.constexpr = 2 * TP
    values = block * BV + tl.arange(0, BV)
    inside, mine = values < V, lane.to(tl.int64) * H + head
    places, rank = tl.arange(0, JP), tl.arange(0, BOTH)  # keys of the window first, then queries
    is_key, token = rank < TP, rank % TP
    exists = token < count
    state = saved + (slot * H + head) * K * V + values[None, :]
    ring_k, ring_g = journal_k + (row * CAP * H + head) * K, journal_g + (row * CAP * H + head) * K
    ring_u = journal_u + (row * CAP * H + head) * V + values[None, :]
    probes = probes_in + (mine * BOTH + rank[:, None]) * K
    entry = (is_key & exists)[:, None] & inside[None, :]
    held_u = tl.load(
        ring_u + back(at, JP, CAP)[:, None] * (H * V),
        mask=(places < held)[:, None] & inside[None, :],
        other=0.0,
    )
    value = tl.load(
        v + (first + token)[:, None] * v_stride + head * V + values[None, :], mask=entry, other=0.0
    ).to(tl.float32)
    strength = tl.load(beta + (first + token) * beta_stride + head, mask=exists, other=0.0).to(tl.float32)
    old = tl.load(
        old_in + (mine * BOTH + rank[:, None]) * JP + places[None, :], mask=exists[:, None], other=0.0
    )
    mix = tl.load(
        mix_in + (mine * BOTH + rank[:, None]) * TP + rank[None, :],
        mask=exists[:, None] & (is_key & exists)[None, :],
        other=0.0,
    )
    new_places = ((at + token) % CAP)[:, None] * (H * V)
    known = begin > 0
    if FOLDS:
        if end > begin:
            target = saved + (target_slot * H + head) * K * V + values[None, :]
            found = _recalled_folded(
                probes, state, known, target, ring_k, ring_g, ring_u, begin, exists, inside,
                H, K, KP, BK, V, J, JP, CAP, KEPT=True,
            )  # fmt: skip
            state, known = target, True
        else:
            found = _recalled(probes, state, known, exists, inside, K, KP, BK, V)
        recalled = found + product(old, held_u)
        if passes:
            before = (token < line)[:, None]
            missing = tl.where(before & entry, strength[:, None] * (value - recalled), 0.0)
            tl.store(ring_u + new_places, product(mix, missing), mask=before & entry)
            tl.debug_barrier()  # these entries are read again, and so is a state that was folded just now
            beyond = _recalled_folded(
                probes, state, known, state, ring_k, ring_g, ring_u, end, exists, inside,
                H, K, KP, BK, V, J, JP, CAP, KEPT=False,
            )  # fmt: skip
            recalled = tl.where(before, recalled, beyond)
    else:
        recalled = _recalled(probes, state, known, exists, inside, K, KP, BK, V) + product(old, held_u)
    missing = tl.where(entry, strength[:, None] * (value - recalled), 0.0)
    result = product(mix, missing)
    tl.store(ring_u + new_places, result, mask=entry)
    tl.store(
        out + ((first + token)[:, None] * H + head) * V + values[None, :],
        recalled + result,
        mask=(~is_key & exists)[:, None] & inside[None, :],
    )
