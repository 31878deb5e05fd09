"""The delta rule gated by channel for single tokens, in Triton: what stands before the rule, and folds.

The rest is the gated delta rule's, with keys and queries decayed as they meet the checkpoint."""

from __future__ import annotations

import triton
import triton.language as tl

from ..gated_delta.single_kernels import answer_one, ask_one
from ..twins.kernels import back, fold_workers, side_by_side
from .kernels import line_of, with_line


@triton.jit
def front_one(
    q, k, log_g, beta,  # [tokens, H, K] three times, [tokens, H]
    journal_k, journal_g,  # [rows, CAP, H, K]
    probes_out,  # [tokens, 2, H, K]: the query, then the key
    old_out,  # [lanes, H, 2, JP]: of each held entry, what the key and the query recall
    mix_out,  # [lanes, H, 4]: 1 for either, strength of the entry, what the query sees of it
    rows, counts, offsets, position, end_base,
    q_stride, k_stride, g_stride, beta_stride,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """As `front`, for windows of one token; what it leaves is for `gated_delta.single_kernels.main_one`, too. A
    thread takes WIDTH channels, and all entries of them: then the sums of gates are its own."""
    head, lane = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    token = tl.load(offsets + lane).to(tl.int64)
    if (row == 0) | (count == 0):
        return
    places, channels = tl.arange(0, JP), side_by_side(KP, WIDTH)
    inner, held = channels < K, (at - end).to(tl.int32)
    ring = (row * CAP * H + head) * K
    ring_k, ring_g = journal_k + ring, journal_g + ring
    filled, later = (places < held)[:, None], ((places > 0) & (places < held))[:, None]
    here, next = back(at, JP, CAP)[:, None] * (H * K), back(at + 1, JP, CAP)[:, None] * (H * K)
    keys = tl.load(ring_k + (here + channels[None, :]), mask=filled & inner[None, :], other=0.0)
    after = tl.load(ring_g + (next + channels[None, :]), mask=later & inner[None, :], other=0.0)
    oldest = tl.load(ring_g + (end % CAP) * (H * K) + channels, mask=inner & (held > 0), other=0.0)
    gate = tl.load(log_g + token * g_stride + head * K + channels, mask=inner, other=0.0)
    own = tl.load(k + token * k_stride + head * K + channels, mask=inner, other=0.0)
    query = tl.load(q + token * q_stride + head * K + channels, mask=inner, other=0.0).to(tl.float32)
    strength = tl.load(beta + token * beta_stride + head).to(tl.float32)

    place = (at % CAP) * (H * K)
    tl.store(ring_k + place + channels, own, mask=inner)
    tl.store(ring_g + place + channels, gate, mask=inner)
    key, mine = own.to(tl.float32), lane.to(tl.int64) * H + head
    decayed = tl.exp(tl.cumsum(after, 0) + gate[None, :]) * keys.to(tl.float32)
    total = tl.exp(oldest + tl.sum(after, 0) + gate)
    tl.store(old_out + mine * 2 * JP + places, tl.sum(decayed * key[None, :], 1))
    tl.store(old_out + (mine * 2 + 1) * JP + places, tl.sum(decayed * query[None, :], 1))
    probe = probes_out + (token * 2 * H + head) * K + channels
    tl.store(probe, total * query, mask=inner)
    tl.store(probe + H * K, total * key, mask=inner)
    tl.store(mix_out + mine * 4, 1.0)
    tl.store(mix_out + mine * 4 + 1, 1.0)
    tl.store(mix_out + mine * 4 + 2, strength)
    tl.store(mix_out + mine * 4 + 3, tl.sum(key * query))


@triton.jit
def fold_one(
    probes, v, out, saved, journal_k, journal_u, journal_g, old_in, mix_in, folds,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, v_stride, few,
    H: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """As `gated_delta.single_kernels.fold_one`."""
    BLOCKS: tl.constexpr = (V + BV - 1) // BV
    channels, places = tl.arange(0, KP), tl.arange(0, JP)
    inner = channels < K
    pieces, mine = tl.load(folds) * H * BLOCKS, tl.program_id(0)
    workers = fold_workers(pieces, few)
    for item in range(tl.where(mine < workers, mine, pieces), pieces, workers):
        lane, head = tl.load(folds + 1 + item // (H * BLOCKS)), item // BLOCKS % H
        values = item % BLOCKS * BV + tl.arange(0, BV)
        inside = values < V
        row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
        begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
        slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
        token, exists = tl.load(offsets + lane).to(tl.int64), count > 0
        tile, offset = inner[:, None] & inside[None, :], channels[:, None] * V + values[None, :]
        state = tl.load(saved + (slot * H + head) * K * V + offset, mask=tile & (begin > 0), other=0.0)
        adds = tl.load(
            journal_u
            + (row * CAP * H + head) * V
            + (back(begin + J, JP, CAP)[:, None] * (H * V) + values[None, :]),
            mask=(places < J)[:, None] & inside[None, :],
            other=0.0,
        )
        probe = probes + (token * 2 * H + head) * K + channels
        query = tl.load(probe, mask=inner & exists, other=0.0)
        key = tl.load(probe + H * K, mask=inner & exists, other=0.0)
        asked = ask_one(
            row, lane, head, token, at, end, values, inside & exists, v, journal_u, old_in, mix_in, v_stride,
            H, V, JP, CAP,
        )  # fmt: skip
        ring = (row * CAP * H + head) * K
        decay, keys = line_of(journal_k + ring, journal_g + ring, begin, channels, H, K, J, JP, CAP)
        state = with_line(state, decay, keys, adds)
        tl.store(saved + (target * H + head) * K * V + offset, state, mask=tile)
        numbers = state.to(tl.float32)
        of_key, of_query = tl.sum(numbers * key[:, None], 0), tl.sum(numbers * query[:, None], 0)
        answer_one(
            asked, of_key, of_query, row, head, token, at, values, inside & exists, out, journal_u, H, V, CAP
        )
