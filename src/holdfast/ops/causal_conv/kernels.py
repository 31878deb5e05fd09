"""Causal convolution over a ring of raw inputs, in Triton, with what stands before and after it in a layer.

A program of `windows` takes some channels of one lane, so that it alone reads and writes what they keep: outputs
first, then the inputs before a folded line, if there is one. Runs take two launches: `runs` computes, with nothing
kept being written; `keep` then writes rings and slots.

MODE says what a layer does around the convolution:
    PLAIN  nothing                                     out [tokens, C] in float32
    SHORT  inputs are before * x, outputs are gated    x [tokens, 3 C]: before, after, x
    DELTA  silu, then heads of the first NORMED channels are divided by their length; those go to `out`, the others
           to `rest`. A program's channels are one head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import follow

PLAIN = tl.constexpr(0)
SHORT = tl.constexpr(1)
DELTA = tl.constexpr(2)


@triton.jit
def _fresh(x, token, stride, channels, mask, C, MODE: tl.constexpr):
    """Raw inputs of this step's tokens: what the ring keeps."""
    place = x + token * stride + channels
    if MODE == SHORT:
        before = tl.load(place, mask=mask, other=0.0)
        value = tl.load(place + 2 * C, mask=mask, other=0.0)
        return (before.to(tl.float32) * value.to(tl.float32)).to(before.dtype).to(tl.float32)
    else:
        return tl.load(place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def kept_input(
    saved, ring, row, slot, base, where, channels, mask, C, W: tl.constexpr, CAP: tl.constexpr
):  # fmt: skip
    """Raw inputs of earlier steps, by position; zero before the sequence."""
    in_slot = (where >= 0) & (where < base)
    in_ring = (where >= 0) & (where >= base)
    from_ring = tl.load(ring + (row * CAP + where % CAP) * C + channels, mask=mask & in_ring, other=0.0)
    from_slot = tl.load(
        saved + (slot * (W - 1) + where - base + W - 1) * C + channels, mask=mask & in_slot, other=0.0
    )
    return from_ring.to(tl.float32) + from_slot.to(tl.float32)


@triton.jit
def _finished(
    acc, x, out, rest, token, stride, channels, inside, C, NORMED, eps, MODE: tl.constexpr
):  # fmt: skip
    """What becomes of the convolution's results [tokens, BC]; token and channels broadcast to them."""
    if MODE == PLAIN:
        tl.store(out + token * C + channels, acc, mask=inside)
    elif MODE == SHORT:
        after = tl.load(x + token * stride + C + channels, mask=inside, other=0.0)
        result = after.to(tl.float32) * acc.to(after.dtype).to(tl.float32)
        tl.store(out + token * C + channels, result.to(out.dtype.element_ty), mask=inside)
    else:
        kind: tl.constexpr = out.dtype.element_ty
        active = (acc * tl.sigmoid(acc)).to(kind)
        wide = active.to(tl.float32)
        square = tl.sum(wide * wide, 1, keep_dims=True)
        normed = (wide * tl.rsqrt(square + eps)).to(kind)
        is_normed = channels < NORMED
        tl.store(out + token * NORMED + channels, normed, mask=inside & is_normed)
        tl.store(rest + token * (C - NORMED) + channels - NORMED, active, mask=inside & ~is_normed)


@triton.jit
def windows(
    x, weight, bias, out, rest, saved, ring,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, sources, tree_size,
    stride, C, NORMED, eps,
    W: tl.constexpr, CAP: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, MODE: tl.constexpr,
    BIASED: tl.constexpr, TREE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """BT tokens at a time.

    sources [windows, tree_size, W], of a TREE: of each node the W - 1 above it, then itself; -1 - m: m before the
    window"""
    lane = tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    first, at = tl.load(offsets + lane).to(tl.int64), tl.load(position + lane)
    begin, end = tl.load(base + lane), tl.load(end_base + lane)
    slot = tl.load(read_slot + lane).to(tl.int64)
    follow(EARLY)
    if row == 0:
        return
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channels < C
    beside = channels[None, :]
    for some in range(0, count, BT):
        t = some + tl.arange(0, BT)[:, None]
        exists = (t < count) & inside[None, :]
        acc = tl.zeros((BT, BC), tl.float32)
        for j in tl.static_range(W):
            if TREE:
                o = tl.load(sources + (lane * tree_size + t) * W + j, mask=t < count, other=0)
            else:
                o = t - (W - 1) + j
            value = _fresh(x, first + o, stride, beside, exists & (o >= 0), C, MODE)
            if j == W - 1:
                place = ring + (row * CAP + (at + t) % CAP) * C + beside
                tl.store(place, value.to(ring.dtype.element_ty), mask=exists)
            else:
                value += kept_input(
                    saved, ring, row, slot, begin, at + o, beside, exists & (o < 0), C, W, CAP
                )
            acc += value * tl.load(weight + beside * W + j, mask=inside[None, :], other=0.0).to(tl.float32)
        if BIASED:
            acc += tl.load(bias + beside, mask=inside[None, :], other=0.0).to(tl.float32)
        _finished(acc, x, out, rest, first + t, stride, beside, exists, C, NORMED, eps, MODE)
    if end > begin:
        tl.debug_barrier()  # what tokens find in the slot may be overwritten now
        # ascending: with a line nearer than the width, a slot's inputs move down within it
        target = saved + tl.load(write_slot + lane).to(tl.int64) * (W - 1) * C + channels
        for j in tl.static_range(W - 1):
            value = kept_input(saved, ring, row, slot, begin, end - (W - 1) + j, channels, inside, C, W, CAP)
            tl.store(target + j * C, value.to(saved.dtype.element_ty), mask=inside)


@triton.jit
def runs(
    x, weight, bias, out, rest, saved, ring, lane_of,
    rows, offsets, position, base, read_slot,
    first_token, tokens, stride, C, NORMED, eps,
    W: tl.constexpr, CAP: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, MODE: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Tokens first_token .. tokens - 1 of the flat batch, BT to a program; lane_of [tokens]: whose each is."""
    token = first_token + tl.program_id(1) * BT + tl.arange(0, BT).to(tl.int64)
    real = token < tokens
    lane = tl.load(lane_of + token, mask=real, other=0)
    row = tl.load(rows + lane, mask=real, other=0).to(tl.int64)[:, None]
    t = (token - tl.load(offsets + lane, mask=real, other=0))[:, None]
    at = tl.load(position + lane, mask=real, other=0)[:, None]
    begin = tl.load(base + lane, mask=real, other=0)[:, None]
    slot = tl.load(read_slot + lane, mask=real, other=0).to(tl.int64)[:, None]
    channels = tl.program_id(0) * BC + tl.arange(0, BC)[None, :]
    inside = (channels < C) & (row > 0)
    begins = (
        tl.min(tl.where(real, t.reshape(BT), W)) < W - 1
    )  # a run does: elsewhere all inputs are this step's
    acc = tl.zeros((BT, BC), tl.float32)
    for j in tl.static_range(W):
        o = t - (W - 1) + j
        value = _fresh(x, token[:, None] - (W - 1) + j, stride, channels, inside & (o >= 0), C, MODE)
        if j < W - 1:  # noqa: SIM102  which is known when this is compiled, and the other is not
            if begins:
                value += kept_input(
                    saved, ring, row, slot, begin, at + o, channels, inside & (o < 0), C, W, CAP
                )
        acc += value * tl.load(weight + channels * W + j, mask=channels < C, other=0.0).to(tl.float32)
    if BIASED:
        acc += tl.load(bias + channels, mask=channels < C, other=0.0).to(tl.float32)
    _finished(acc, x, out, rest, token[:, None], stride, channels, inside, C, NORMED, eps, MODE)


@triton.jit
def _leave(
    x, saved, ring, target_slot, line, row, slot, begin, at, first, stride, channels, inside, C,
    W: tl.constexpr, CAP: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """The W - 1 inputs before a line, in a slot. Ascending, as in `windows`."""
    for j in tl.static_range(W - 1):
        where = line - (W - 1) + j
        value = _fresh(x, first + where - at, stride, channels, inside & (where >= at), C, MODE)
        value += kept_input(saved, ring, row, slot, begin, where, channels, inside & (where < at), C, W, CAP)
        place = saved + (target_slot * (W - 1) + j) * C + channels
        tl.store(place, value.to(saved.dtype.element_ty), mask=inside)


@triton.jit
def keep(
    x, saved, ring, exports, num_exports, first_lane,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    stride, C,
    W: tl.constexpr, CAP: tl.constexpr, BC: tl.constexpr, MODE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """exports [num_exports, 3]: lane, slot, line"""
    lane = first_lane + tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    first, at = tl.load(offsets + lane).to(tl.int64), tl.load(position + lane)
    begin, end = tl.load(base + lane), tl.load(end_base + lane)
    slot = tl.load(read_slot + lane).to(tl.int64)
    follow(EARLY)
    if row == 0:
        return
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = channels < C
    for e in range(num_exports):
        if tl.load(exports + 3 * e) == lane:
            _leave(
                x, saved, ring, tl.load(exports + 3 * e + 1), tl.load(exports + 3 * e + 2),
                row, slot, begin, at, first, stride, channels, inside, C, W, CAP, MODE,
            )  # fmt: skip
    keep_part(
        x, saved, ring, tl.load(write_slot + lane).to(tl.int64), end, row, slot, begin, at, first, count,
        stride, channels, inside, C, W, CAP, MODE,
    )  # fmt: skip


@triton.jit
def keep_part(
    x, saved, ring, target_slot, end, row, slot, begin, at, first, count, stride, channels, inside, C,
    W: tl.constexpr, CAP: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Some channels of a lane: the inputs before the line that it passes, if it does, and then its own."""
    if end > begin:
        _leave(
            x, saved, ring, target_slot, end, row, slot, begin, at, first, stride, channels, inside, C,
            W, CAP, MODE,
        )  # fmt: skip
    for t in range(tl.maximum(count - CAP, 0), count):
        value = _fresh(x, first + t, stride, channels, inside, C, MODE)
        place = ring + (row * CAP + (at + t) % CAP) * C + channels
        tl.store(place, value.to(ring.dtype.element_ty), mask=inside)


@triton.jit
def gates(
    a, b, a_log, dt_bias, log_g, beta, a_stride, b_stride, total, beta_scale,
    HV: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A delta net's, [tokens, HV] in float32: log_g = -exp(a_log) softplus(a + dt_bias), beta = scale * sigmoid(b)"""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    token, head = (place // HV).to(tl.int64), place % HV
    rate, bias = tl.exp(tl.load(a_log + head)), tl.load(dt_bias + head)
    follow(EARLY)
    raw = tl.load(a + token * a_stride + head, mask=inside, other=0.0).to(tl.float32) + bias
    soft = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
    tl.store(log_g + place, -rate * soft, mask=inside)
    strength = tl.sigmoid(tl.load(b + token * b_stride + head, mask=inside, other=0.0).to(tl.float32))
    tl.store(beta + place, strength * beta_scale, mask=inside)
