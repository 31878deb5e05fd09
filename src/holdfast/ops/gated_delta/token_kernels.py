"""The gated delta rule for single tokens from projections on: convolution, activation, norms and gates as well.

With many lanes `front_token` does what stands before the rule, and `single_kernels` the rule; with few, one launch
does it all.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..causal_conv.kernels import kept_input
from ..twins.kernels import back, follow
from . import checkpoint_kernels as checkpoints
from .single_kernels import coefficients, fold_lane, gates_since


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
    `single_kernels.front_one` does. Programs below H take a key head and its gates, others K channels of the values.

    EARLY: begins while the kernel that makes the inputs still runs; all else is read before they are there.
    """
    role, lane = tl.program_id(0), tl.program_id(1)
    HV: tl.constexpr = H * GROUP
    row = tl.load(rows + lane).to(tl.int64)
    at, begin, end = tl.load(position + lane), tl.load(base + lane), tl.load(end_base + lane)
    count, token = tl.load(counts + lane), tl.load(offsets + lane).to(tl.int64)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    if row == 0:  # asked when all is on its way: a wait costs more than these loads
        follow(EARLY)
        return
    channels, places = tl.arange(0, K), tl.arange(0, JP)
    kind: tl.constexpr = qk_out.dtype.element_ty
    if role >= H:
        mine = (H + role) * K + channels
        past = _past(conv_weight, conv_saved, conv_ring, mine, mine < C, row, at, begin, slot, C, W, RING)
        follow(EARLY)
        value = _convolved(
            past, qkv, conv_weight, conv_saved, conv_ring, mine, mine < C, True, row, token, at, begin, end, slot,
            target, count, qkv_stride, C, W, RING,
        )  # fmt: skip
        place = token * (C - 2 * H * K) + mine - 2 * H * K
        tl.store(v_out + place, (value * tl.sigmoid(value)).to(kind), mask=(mine < C) & (count > 0))
    else:
        ring = journal_k + (row * CAP * H + role) * K
        filled = places < (at - end).to(tl.int32)
        old = tl.load(
            ring + back(at, JP, CAP)[:, None] * (H * K) + channels, mask=filled[:, None], other=0.0
        ).to(tl.float32)
        ours, theirs, every = role * K + channels, (H + role) * K + channels, channels < K
        past = _past(conv_weight, conv_saved, conv_ring, ours, every, row, at, begin, slot, C, W, RING)
        key_past = _past(conv_weight, conv_saved, conv_ring, theirs, every, row, at, begin, slot, C, W, RING)
        first = role * GROUP
        since = gates_since(journal_g, row, first, at, end, GROUP, HV, JP, CAP)
        rates, biases = (), ()
        for member in tl.static_range(GROUP):
            rates += (-tl.exp(tl.load(a_log + first + member)),)
            biases += (tl.load(dt_bias + first + member),)
        follow(EARLY)
        gates, strengths = (), ()
        for member in tl.static_range(GROUP):
            raw = tl.load(a + token * a_stride + first + member, mask=count > 0, other=0.0).to(tl.float32)
            written = tl.load(b + token * b_stride + first + member, mask=count > 0, other=0.0).to(tl.float32)
            raw += biases[member]
            soft = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
            gates += (rates[member] * soft,)
            strengths += (beta_scale * tl.sigmoid(written),)
        query = _convolved(
            past, qkv, conv_weight, conv_saved, conv_ring, ours, every, True, row, token, at, begin, end, slot,
            target, count, qkv_stride, C, W, RING,
        )  # fmt: skip
        key = _convolved(
            key_past, qkv, conv_weight, conv_saved, conv_ring, theirs, every, True, row, token, at, begin, end, slot,
            target, count, qkv_stride, C, W, RING,
        )  # fmt: skip
        if count > 0:
            probe, kept = _unit(query, eps, kind), _unit(key, eps, kind)
            tl.store(qk_out + (token * 2 * H + role) * K + channels, probe)
            tl.store(qk_out + ((token * 2 + 1) * H + role) * K + channels, kept)
            tl.store(ring + (at % CAP) * (H * K) + channels, kept)
            coefficients(
                kept, probe, old, since, gates, strengths, row, lane, first, at, scale,
                journal_g, old_out, mix_out, GROUP, HV, JP, CAP,
            )  # fmt: skip


@triton.jit
def _unit(x, eps, kind: tl.constexpr):
    """silu, then over the length; rounded after either."""
    active = (x * tl.sigmoid(x)).to(kind).to(tl.float32)
    return (active * tl.rsqrt(tl.sum(active * active) + eps)).to(kind)


@triton.jit
def _past(
    weight, saved, ring, channels, inside, row, at, begin, slot, C, W: tl.constexpr, CAP: tl.constexpr
):  # fmt: skip
    """What earlier tokens give to the convolution of one, in these channels."""
    acc = tl.zeros(channels.shape, tl.float32)
    for j in tl.static_range(W - 1):
        where = at - (W - 1) + j
        value = kept_input(saved, ring, row, slot, begin, where, channels, inside, C, W, CAP)
        acc += value * tl.load(weight + channels * W + j, mask=inside, other=0.0).to(tl.float32)
    return acc


@triton.jit
def _convolved(
    acc, x, weight, saved, ring, channels, inside, keeps, row, token, at, begin, end, slot, target, count, stride, C,
    W: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The convolution of one token, as `ops.causal_conv.kernels.windows` has it, in these channels. acc: its past;
    keeps: whether its input is appended, and at a line those before it kept"""
    own = tl.load(x + token * stride + channels, mask=inside & (count > 0), other=0.0)
    acc += own.to(tl.float32) * tl.load(weight + channels * W + W - 1, mask=inside, other=0.0).to(tl.float32)
    place = ring + (row * CAP + at % CAP) * C + channels
    tl.store(place, own.to(ring.dtype.element_ty), mask=inside & keeps & (count > 0))
    if (end > begin) & keeps:
        for j in tl.static_range(W - 1):
            value = kept_input(saved, ring, row, slot, begin, end - (W - 1) + j, channels, inside, C, W, CAP)
            place = saved + (target * (W - 1) + j) * C + channels
            tl.store(place, value.to(saved.dtype.element_ty), mask=inside)
    return acc


@triton.jit
def whole_token(
    qkv, a, b, conv_weight, a_log, dt_bias, conv_saved, conv_ring,
    out, saved, scales, journal_k, journal_u, journal_g,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    qkv_stride, a_stride, b_stride, C, beta_scale, qk_scale, eps,
    H: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, W: tl.constexpr, RING: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """All of it in one launch, for few lanes: with many, what every program does for itself would cost more.

    Of the programs of a key head, the first appends what they share. Nobody reads what another one writes: a token's
    own place in a ring is no earlier token's, and a fold reads no inputs that are kept beside its checkpoint.
    """
    block, value_head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    HV: tl.constexpr = H * GROUP
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    token = tl.load(offsets + lane).to(tl.int64)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    if row == 0:
        follow(EARLY)
        return
    kind: tl.constexpr = qkv.dtype.element_ty
    head = value_head // GROUP
    values, channels, places = block * BV + tl.arange(0, BV), tl.arange(0, K), tl.arange(0, JP)
    inside, every = values < V, channels < K
    if end > begin:
        fold_lane(
            row, begin, slot, target, value_head, values, inside,
            saved, scales, journal_k, journal_u, journal_g, H, GROUP, K, V, J, JP, CAP,
        )  # fmt: skip
        tl.debug_barrier()
    source = tl.where(end > begin, target, slot)
    state, scale = checkpoints.load(saved, scales, source, value_head, values, inside & (end > 0), HV, K, V)
    place = back(at, JP, CAP)[:, None]
    filled = (places < (at - end).to(tl.int32))[:, None]
    ring = journal_k + (row * CAP * H + head) * K
    old = tl.load(ring + place * (H * K) + channels, mask=filled, other=0.0).to(tl.float32)
    adds = journal_u + (row * CAP * HV + value_head) * V + values
    old_u = tl.load(adds[None, :] + place * (HV * V), mask=filled & inside[None, :], other=0.0)
    since = gates_since(journal_g, row, value_head, at, end, 1, HV, JP, CAP)
    rate, bias = -tl.exp(tl.load(a_log + value_head)), tl.load(dt_bias + value_head)
    of_query, of_key, of_value = (
        head * K + channels,
        (H + head) * K + channels,
        2 * H * K + value_head * V + values,
    )
    query = _past(conv_weight, conv_saved, conv_ring, of_query, every, row, at, begin, slot, C, W, RING)
    key = _past(conv_weight, conv_saved, conv_ring, of_key, every, row, at, begin, slot, C, W, RING)
    value = _past(conv_weight, conv_saved, conv_ring, of_value, inside, row, at, begin, slot, C, W, RING)
    follow(EARLY)
    raw = tl.load(a + token * a_stride + value_head, mask=count > 0, other=0.0).to(tl.float32) + bias
    strength = tl.load(b + token * b_stride + value_head, mask=count > 0, other=0.0).to(tl.float32)
    first = (block == 0) & (value_head % GROUP == 0)
    query = _convolved(
        query, qkv, conv_weight, conv_saved, conv_ring, of_query, every, first, row, token, at, begin, end, slot,
        target, count, qkv_stride, C, W, RING,
    )  # fmt: skip
    key = _convolved(
        key, qkv, conv_weight, conv_saved, conv_ring, of_key, every, first, row, token, at, begin, end, slot,
        target, count, qkv_stride, C, W, RING,
    )  # fmt: skip
    value = _convolved(
        value, qkv, conv_weight, conv_saved, conv_ring, of_value, inside, True, row, token, at, begin, end, slot,
        target, count, qkv_stride, C, W, RING,
    )  # fmt: skip
    if count > 0:
        own = rate * tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
        kept = _unit(key, eps, kind)
        tl.store(ring + (at % CAP) * (H * K) + channels, kept, mask=every & first)
        tl.store(journal_g + (row * CAP + at % CAP) * HV + value_head, own, mask=block == 0)
        written, probe = kept.to(tl.float32), _unit(query, eps, kind).to(tl.float32)
        given = (value * tl.sigmoid(value)).to(kind).to(tl.float32)
        weight, decay = tl.exp(since[0][0] + own), scale * tl.exp(since[0][1] + own)
        to_key, to_query = (
            weight * tl.sum(old * written[None, :], 1),
            weight * tl.sum(old * probe[None, :], 1),
        )
        numbers = state.to(tl.float32)
        recalled = decay * tl.sum(numbers * written[:, None], 0) + tl.sum(to_key[:, None] * old_u, 0)
        seen = decay * tl.sum(numbers * probe[:, None], 0) + tl.sum(to_query[:, None] * old_u, 0)
        fresh = beta_scale * tl.sigmoid(strength) * (given - recalled)
        tl.store(adds + (at % CAP) * (HV * V), fresh, mask=inside)
        result = qk_scale * (seen + tl.sum(written * probe) * fresh)
        tl.store(out + (token * HV + value_head) * V + values, result, mask=inside)
