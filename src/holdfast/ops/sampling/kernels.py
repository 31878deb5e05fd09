"""Choosing tokens, in Triton: what a row keeps as a threshold, a draw from it by part, and the best of the parts.

Nothing is sorted. In a stable sort by logit the tokens that top_k and top_p keep come first: all that lie above
some logit, and of those equal to it the first few. `cut` finds that logit by its digits, from the highest, and the
last of its equals; what is kept can then be told of each token alone.

Digits are those of the logit as it is given, so two bytes have half as many as four. Temperature does not change
the order, but for float32 logits so close that they are equal once divided.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cut(
    logits,  # [S, V]
    temperature, top_k, top_p, min_p,  # [S] each
    cut_key, cut_token, best,  # [S]: kept is above the key, or at it and not after the token; the largest logit
    logits_row,
    V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """For every row. One that keeps everything is not looked at."""
    row = tl.program_id(0).to(tl.int64)
    heat, k, p = tl.load(temperature + row), tl.load(top_k + row).to(tl.int32), tl.load(top_p + row)
    limited = (k > 0) & (k < V)
    key, token, largest = tl.zeros((), tl.uint32), V + 0, 0.0
    if (heat > 0.0) & (limited | (p < 1.0) | (tl.load(min_p + row) > 0.0)):
        own = logits + row * logits_row
        largest = _largest(own, V, BLOCK)
        if limited:
            key, above = _descend(own, heat, largest, key, token, k.to(tl.float32), False, V, BLOCK)
            token = _nth(own, key, token, k - above.to(tl.int32), V, BLOCK)
        if p < 1.0:
            target = p * _mass(own, heat, largest, key, token, V, BLOCK)
            lowest, above = _descend(own, heat, largest, key, token, target, True, V, BLOCK)
            each = tl.exp((_logit(lowest, own.dtype.element_ty) - largest) / heat)
            wanted = tl.maximum(tl.ceil((target - above) / each), 1.0)
            token = tl.where(lowest > key, V, token)  # those at the first key are all above the second
            token = _nth(own, lowest, token, tl.minimum(wanted, V).to(tl.int32), V, BLOCK)
            key = lowest
    tl.store(cut_key + row, key.to(tl.int32, bitcast=True))
    tl.store(cut_token + row, token)
    tl.store(best + row, largest)


@triton.jit
def choose(
    logits,  # [S, V]
    temperature, min_p, seed, position,  # [S] each
    cut_key, cut_token, best,  # as `cut` leaves them
    part_value, part_token,  # [S, parts]
    logits_row,
    V: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr, TRUNCATES: tl.constexpr,
):  # fmt: skip
    """For every (part of the vocabulary, row): its best token, after noise if the row draws; of equals the first."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = part * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * logits_row + token, mask=token < V, other=float("-inf"))
    value = logit.to(tl.float32)
    if DRAWS:
        heat = tl.load(temperature + row)
        if heat > 0.0:
            if TRUNCATES:
                lowest = tl.load(cut_key + row).to(tl.uint32, bitcast=True)
                kept = _kept(order_key(logit), token, lowest, tl.load(cut_token + row), V)
                kept = kept & (tl.exp((value - tl.load(best + row)) / heat) >= tl.load(min_p + row))
                value = tl.where(kept, value, float("-inf"))
            value = tl.div_rn(value, heat)
            value += gumbel(tl.load(seed + row), tl.load(position + row), token)
            value = tl.where(token < V, value, float("-inf"))
    winner = tl.argmax(value, 0)
    place = row * tl.num_programs(0) + part
    tl.store(part_value + place, tl.max(value, 0))
    tl.store(part_token + place, part * BLOCK + winner)


@triton.jit
def pick(part_value, part_token, out, parts, V: tl.constexpr, BP: tl.constexpr):
    """For every row: the best of its parts, of equals the first. A token that exists, whatever the logits were."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BP)
    value = tl.load(part_value + row * parts + part, mask=part < parts, other=float("-inf"))
    token = tl.load(part_token + row * parts + tl.minimum(tl.argmax(value, 0), parts - 1))
    tl.store(out + row, tl.minimum(token, V - 1))


@triton.jit
def order_key(logit):
    """Unsigned integers in the order of the logits."""
    logit = tl.where(logit == 0.0, 0.0, logit).to(logit.dtype)  # zero has two signs
    if logit.dtype.primitive_bitwidth == 16:
        bits = logit.to(tl.uint16, bitcast=True).to(tl.uint32)
        return tl.where(bits >= 0x8000, bits ^ 0xFFFF, bits | 0x8000)
    else:
        bits = logit.to(tl.uint32, bitcast=True)
        return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _logit(key, DTYPE: tl.constexpr):
    """The logit of a key, in float32"""
    if DTYPE.primitive_bitwidth == 16:
        bits = tl.where(key >= 0x8000, key & 0x7FFF, key ^ 0xFFFF).to(tl.uint16)
    else:
        bits = tl.where(key >= 0x80000000, key & 0x7FFFFFFF, key ^ 0xFFFFFFFF)
    return bits.to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def _read(own, token, V: tl.constexpr):
    return tl.load(own + token, mask=token < V, other=float("-inf"))


@triton.jit
def _largest(own, V: tl.constexpr, BLOCK: tl.constexpr):
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, V, BLOCK):
        most = tl.maximum(most, _read(own, start + tl.arange(0, BLOCK), V).to(tl.float32))
    return tl.max(most, 0)


@triton.jit
def _kept(key, token, lowest, last, V: tl.constexpr):
    return ((key > lowest) | ((key == lowest) & (token <= last))) & (token < V)


@triton.jit
def _mass(own, heat, largest, lowest, last, V: tl.constexpr, BLOCK: tl.constexpr):
    """Of what is kept so far, where the largest has mass 1."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, V, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = _read(own, token, V)
        mass = tl.exp((logit.to(tl.float32) - largest) / heat)
        total += tl.where(_kept(order_key(logit), token, lowest, last, V), mass, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _descend(
    own, heat, largest, lowest, last, target, MASS: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest key at or above which `target` tokens lie, or so much mass, of what is kept so far.

    Returns it, and how much lies above it. Each turn finds four bits: tokens that agree in those found are counted
    by their next four. Counts are exact in float32.
    """
    BITS: tl.constexpr = own.dtype.element_ty.primitive_bitwidth
    digits = tl.arange(0, 16)
    found = tl.zeros((), tl.uint32)
    above = 0.0
    shift = tl.full((), BITS, tl.uint32)
    for _ in range(BITS // 4):
        shift -= 4
        bins = tl.zeros((BLOCK, 16), tl.float32)
        for start in range(0, V, BLOCK):
            token = start + tl.arange(0, BLOCK)
            logit = _read(own, token, V)
            key = order_key(logit)
            weight = tl.full((BLOCK,), 1.0, tl.float32)
            if MASS:
                weight = tl.exp((logit.to(tl.float32) - largest) / heat)
            counted = _kept(key, token, lowest, last, V) & ((key >> shift) >> 4 == found)
            digit = ((key >> shift) & 15).to(tl.int32)
            here = counted[:, None] & (digit[:, None] == digits[None, :])
            bins += tl.where(here, weight[:, None], 0.0)
        each = tl.sum(bins, 0)
        beyond = tl.cumsum(each, 0, reverse=True)
        reached = (above + beyond >= target) & (beyond > 0.0)
        chosen = tl.max(tl.where(reached, digits, -1), 0)
        if chosen < 0:  # sums in another order fell short: the lowest that there is
            chosen = tl.min(tl.where(each > 0.0, digits, 15), 0)
        above += tl.sum(tl.where(digits > chosen, each, 0.0), 0)
        found = found * 16 + chosen.to(tl.uint32)
    return found, above


@triton.jit
def _nth(own, key, last, count, V: tl.constexpr, BLOCK: tl.constexpr):
    """The token that is the `count`th of those at this key, or the last one not after `last` if there are fewer."""
    seen, found = 0, 0
    for start in range(0, V, BLOCK):
        token = start + tl.arange(0, BLOCK)
        equal = (order_key(_read(own, token, V)) == key) & (token <= last) & (token < V)
        rank = seen + tl.cumsum(equal.to(tl.int32), 0)
        found = tl.maximum(found, tl.max(tl.where(equal & (rank <= count), token, 0), 0))
        seen += tl.sum(equal.to(tl.int32), 0)
    return found


@triton.jit
def gumbel(seed, position, token):
    """The reference's noise: a counter-based draw in 64-bit integers, its logarithms in float64."""
    bits = _mix(_mix(_mix(seed) ^ position) ^ _mix(token.to(tl.int64)))
    uniform = (_shifted(bits, 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _mix(x):
    x = x + -7046029254386353131
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


@triton.jit
def _shifted(x, BITS: tl.constexpr):
    """Logical shift right."""
    return (x >> BITS) & ((1 << (64 - BITS)) - 1)
