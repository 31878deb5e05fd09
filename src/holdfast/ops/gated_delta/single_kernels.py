"""The gated delta rule for single tokens, in Triton, without matrix products: fifteen sixteenths would be idle.

`front_one` runs for every (lane, key head), as `kernels.front` does. Then `main_one` reads the checkpoint of every
lane that does not fold, for every (lane, value head, block of value channels), and beside it `fold_one` takes the
others: what those need would cost all of them registers.

Held entries are counted from the newest back: the decay since each is then a sum from the front. One from the back
costs ten exchanges between threads for every number.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import back, fold_workers, follow
from . import checkpoint_kernels as checkpoints
from .kernels import with_entries


@triton.jit
def front_one(
    qk, log_g, beta,  # [tokens, 2, H, K], [tokens, HV] twice
    journal_k, journal_g,  # [rows, CAP, H, K], [rows, CAP, HV]
    old_out,  # [lanes, HV, 2, JP]: of each held entry, what the key and the query recall
    mix_out,  # [lanes, HV, 4]: decay for either, strength of the entry, what the query sees of it
    rows, counts, offsets, position, end_base,
    g_stride, beta_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """As `front`, for windows of one token, whose triangular system is a number. EARLY: as for `front_token`."""
    follow(EARLY)
    role, lane = tl.program_id(0), tl.program_id(1)
    HV: tl.constexpr = H * GROUP
    row = tl.load(rows + lane).to(tl.int64)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    count, token = tl.load(counts + lane), tl.load(offsets + lane).to(tl.int64)
    channels, places = tl.arange(0, K), tl.arange(0, JP)
    if (row > 0) & (count > 0):
        filled = places < (at - end).to(tl.int32)
        ring = journal_k + (row * CAP * H + role) * K
        old = tl.load(
            ring + back(at, JP, CAP)[:, None] * (H * K) + channels, mask=filled[:, None], other=0.0
        ).to(tl.float32)
        query = tl.load(qk + (token * 2 * H + role) * K + channels)
        key = tl.load(qk + ((token * 2 + 1) * H + role) * K + channels)
        first = role * GROUP
        since = gates_since(journal_g, row, first, at, end, GROUP, HV, JP, CAP)
        gates, strengths = (), ()
        for member in tl.static_range(GROUP):
            gates += (tl.load(log_g + token * g_stride + first + member).to(tl.float32),)
            strengths += (tl.load(beta + token * beta_stride + first + member).to(tl.float32),)
        tl.store(ring + (at % CAP) * (H * K) + channels, key)
        coefficients(
            key, query, old, since, gates, strengths, row, lane, first, at, scale,
            journal_g, old_out, mix_out, GROUP, HV, JP, CAP,
        )  # fmt: skip


@triton.jit
def gates_since(
    journal_g, row, first, at, end,
    GROUP: tl.constexpr, HV: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Of each value head from `first` on: the sum of log_g after each held entry [JP], and of them all."""
    places = tl.arange(0, JP)
    held = (at - end).to(tl.int32)
    found = ()
    for member in tl.static_range(GROUP):
        gates = journal_g + row * CAP * HV + first + member
        later = (places > 0) & (places < held)
        after = tl.load(gates + back(at + 1, JP, CAP) * HV, mask=later, other=0.0)
        every = tl.load(gates + back(at, JP, CAP) * HV, mask=places < held, other=0.0)
        found += ((tl.cumsum(after), tl.sum(every)),)
    return found


@triton.jit
def coefficients(
    key, query, old, since, gates, strengths, row, lane, first, at, scale, journal_g, old_out, mix_out,
    GROUP: tl.constexpr, HV: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """What depends on keys and gates alone, for the value heads from `first` on; old [JP, K]: the keys held. Appends
    the gates. All was loaded before: behind a store, a load would wait for it."""
    places = tl.arange(0, JP)
    key, query = key.to(tl.float32), query.to(tl.float32)
    key_dots, query_dots = tl.sum(old * key[None, :], 1), scale * tl.sum(old * query[None, :], 1)
    seen = scale * tl.sum(key * query)
    for member in tl.static_range(GROUP):
        own, mine = gates[member], lane.to(tl.int64) * HV + first + member
        weight, decay = tl.exp(since[member][0] + own), tl.exp(since[member][1] + own)
        tl.store(journal_g + (row * CAP + at % CAP) * HV + first + member, own)
        tl.store(old_out + mine * 2 * JP + places, weight * key_dots)
        tl.store(old_out + (mine * 2 + 1) * JP + places, weight * query_dots)
        tl.store(mix_out + mine * 4, decay)
        tl.store(mix_out + mine * 4 + 1, scale * decay)
        tl.store(mix_out + mine * 4 + 2, strengths[member])
        tl.store(mix_out + mine * 4 + 3, seen)


@triton.jit
def fold_lane(
    row, begin, slot, target, value_head, values, inside,
    saved, scales, journal_k, journal_u, journal_g,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """A line of a lane's journal into its checkpoint, which is returned as it is stored, with its scale."""
    HV: tl.constexpr = H * GROUP
    state, scale = checkpoints.load(saved, scales, slot, value_head, values, inside & (begin > 0), HV, K, V)
    state = checkpoints.wide(state, scale)
    places, channels = tl.arange(0, JP), tl.arange(0, K)
    keys = journal_k + (row * CAP * H + value_head // GROUP) * K
    adds = journal_u + (row * CAP * HV + value_head) * V
    gates = journal_g + row * CAP * HV + value_head
    if J == 1:  # the state is rewritten for every token: no product, nothing to wait for
        place = begin % CAP
        key = tl.load(keys + place * (H * K) + channels).to(tl.float32)
        add = tl.load(adds + place * (HV * V) + values, mask=inside, other=0.0)
        state = tl.exp(tl.load(gates + place * HV)) * state + key[:, None] * add[None, :]
    else:
        real, place = places < J, back(begin + J, JP, CAP)
        key = tl.load(keys + place[:, None] * (H * K) + channels[None, :], mask=real[:, None], other=0.0)
        add = tl.load(
            adds + place[:, None] * (HV * V) + values[None, :],
            mask=real[:, None] & inside[None, :],
            other=0.0,
        )
        after = tl.load(gates + back(begin + J + 1, JP, CAP) * HV, mask=real & (places > 0), other=0.0)
        whole = tl.sum(tl.load(gates + place * HV, mask=real, other=0.0))
        state = with_entries(state, tl.exp(whole), key, tl.exp(tl.cumsum(after)), add)
    return checkpoints.store(saved, scales, target, value_head, values, state, inside, HV, K, V)


@triton.jit
def fold_one(
    qk, v, out, saved, scales, journal_k, journal_u, journal_g, old_in, mix_in, folds,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, v_stride, few,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Lanes whose journal holds a whole line: it goes to the checkpoint, which the token then meets. Few programs
    take all of them: so they run beside `main_one`, whose programs would wait until the last of many had begun.
    AHEAD: they run ahead of it, beside `front`, and leave the tokens to it."""
    HV: tl.constexpr = H * GROUP
    BLOCKS: tl.constexpr = (V + BV - 1) // BV
    channels = tl.arange(0, K)
    pieces, mine = tl.load(folds) * HV * BLOCKS, tl.program_id(0)
    workers = fold_workers(pieces, few)
    for item in range(tl.where(mine < workers, mine, pieces), pieces, workers):
        lane, value_head = tl.load(folds + 1 + item // (HV * BLOCKS)), item // BLOCKS % HV
        values = item % BLOCKS * BV + tl.arange(0, BV)
        inside = values < V
        row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
        begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
        slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
        token, exists = tl.load(offsets + lane).to(tl.int64), (count > 0) & (not AHEAD)
        probe = qk + (token * 2 * H + value_head // GROUP) * K + channels
        query = tl.load(probe, mask=(channels < K) & exists, other=0.0).to(tl.float32)
        key = tl.load(probe + H * K, mask=(channels < K) & exists, other=0.0).to(tl.float32)
        asked = ask_one(
            row, lane, value_head, token, at, end, values, inside & exists, v, journal_u, old_in, mix_in, v_stride,
            HV, V, JP, CAP,
        )  # fmt: skip
        stored, scale = fold_lane(
            row, begin, slot, target, value_head, values, inside,
            saved, scales, journal_k, journal_u, journal_g, H, GROUP, K, V, J, JP, CAP,
        )  # fmt: skip
        if not AHEAD:
            numbers = stored.to(tl.float32)
            of_key, of_query = tl.sum(numbers * key[:, None], 0), tl.sum(numbers * query[:, None], 0)
            answer_one(
                asked, scale * of_key, scale * of_query, row, value_head, token, at, values, inside & exists,
                out, journal_u, HV, V, CAP,
            )  # fmt: skip


@triton.jit
def main_one(
    qk, v, out, saved, scales, journal_u, old_in, mix_in,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, v_stride,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    KC: tl.constexpr, WIDE: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, BEHIND: tl.constexpr,
):  # fmt: skip
    """As `kernels.main`, of lanes that do not fold; or of all, BEHIND a `fold_one` that has folded them. The state is
    taken in parts: with all its numbers in float32 at once, registers would be twice as many, and programs that wait
    for memory together half as many."""
    block, value_head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    HV: tl.constexpr = H * GROUP
    kind: tl.constexpr = saved.dtype.element_ty
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, token = tl.load(read_slot + lane).to(tl.int64), tl.load(offsets + lane).to(tl.int64)
    values = block * BV + tl.arange(0, BV)
    if BEHIND:
        slot = tl.where(end > begin, tl.load(write_slot + lane).to(tl.int64), slot)
    if (row == 0) | (count == 0) | ((end > begin) & (not BEHIND)):
        return
    inside = values < V
    known = inside & (end > 0)
    parts = checkpoints.load_parts(saved, slot, value_head, values, known, HV, K, KP, V, KC, WIDE)
    scale = checkpoints.load_scale(scales, slot, value_head, values, known, HV, V, kind)
    asked = ask_one(
        row,
        lane,
        value_head,
        token,
        at,
        end,
        values,
        inside,
        v,
        journal_u,
        old_in,
        mix_in,
        v_stride,
        HV,
        V,
        JP,
        CAP,
    )
    query = qk + (token * 2 * H + value_head // GROUP) * K
    of_key, of_query = tl.zeros((KC, BV), tl.float32), tl.zeros((KC, BV), tl.float32)
    for i in tl.static_range(KP // KC):
        some, numbers = i * KC + tl.arange(0, KC), parts[i].to(tl.float32)
        inner = some < K
        of_key += numbers * tl.load(query + H * K + some, mask=inner, other=0.0).to(tl.float32)[:, None]
        of_query += numbers * tl.load(query + some, mask=inner, other=0.0).to(tl.float32)[:, None]
    answer_one(
        asked, scale * tl.sum(of_key, 0), scale * tl.sum(of_query, 0), row, value_head, token, at, values, inside,
        out, journal_u, HV, V, CAP,
    )  # fmt: skip


@triton.jit
def ask_one(
    row, lane, head, token, at, end, values, inside, v, journal_u, old_in, mix_in, v_stride,
    HV: tl.constexpr, V: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """What a token needs besides the checkpoint: held entries [JP, BV], how much of each key and query recall, its
    value, and four numbers."""
    places = tl.arange(0, JP)
    held = tl.load(
        journal_u + (row * CAP * HV + head) * V + back(at, JP, CAP)[:, None] * (HV * V) + values[None, :],
        mask=(places < (at - end).to(tl.int32))[:, None] & inside[None, :],
        other=0.0,
    )
    mine = lane.to(tl.int64) * HV + head
    to_key = tl.load(old_in + mine * 2 * JP + places)
    to_query = tl.load(old_in + (mine * 2 + 1) * JP + places)
    value = tl.load(v + token * v_stride + head * V + values, mask=inside, other=0.0).to(tl.float32)
    decay, by_query = tl.load(mix_in + mine * 4), tl.load(mix_in + mine * 4 + 1)
    strength, seen = tl.load(mix_in + mine * 4 + 2), tl.load(mix_in + mine * 4 + 3)
    return held, to_key, to_query, value, decay, by_query, strength, seen


@triton.jit
def answer_one(
    asked, of_key, of_query, row, head, token, at, values, inside, out, journal_u,
    HV: tl.constexpr, V: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """of_key, of_query [BV]: the sums over the checkpoint. The token's entry and its output."""
    held, to_key, to_query, value, decay, by_query, strength, seen = asked
    recalled = decay * of_key + tl.sum(to_key[:, None] * held, 0)
    result = by_query * of_query + tl.sum(to_query[:, None] * held, 0)
    fresh = strength * (value - recalled)
    tl.store(journal_u + ((row * CAP + at % CAP) * HV + head) * V + values, fresh, mask=inside)
    tl.store(out + (token * HV + head) * V + values, result + seen * fresh, mask=inside)
