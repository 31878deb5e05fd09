"""Tiles of a checkpoint, as the kernels read and write them: [K, BV] of a slot's head, stored [key, value].

Numbers of one byte go with a scale for every value channel, [slots, HV, 1, V]: the greatest of its K keys becomes the
greatest number there is. The scale is a bfloat16, so that number times scale is exact, and what was read can be
stored again without a change. Sums over keys are taken of the numbers, and scaled afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROUND = tl.constexpr(12582912.0)
"""1.5 * 2^23: a float32 of less than 2^22 that this is added to has no digits after the point."""


@triton.jit
def load_scale(scales, slot, head, values, known, HV: tl.constexpr, V: tl.constexpr, kind: tl.constexpr):
    """[BV] in float32, of numbers that have one; else ones"""
    if kind.primitive_bitwidth == 8:
        return tl.load(scales + (slot * HV + head) * V + values, mask=known, other=0.0).to(tl.float32)
    else:
        return tl.full(values.shape, 1.0, tl.float32)


@triton.jit
def wide(stored, scale):
    if stored.dtype.primitive_bitwidth == 8:
        return stored.to(tl.float32) * scale[None, :]
    else:
        return stored.to(tl.float32)


@triton.jit
def greatest(x):
    """Of each column the greatest absolute value; if one is not a number, neither is this."""
    return tl.max(tl.abs(x), 0) + 0.0 * tl.sum(x, 0)


@triton.jit
def _to_eight_bits(x):
    """As a bfloat16 has it, to nearest; by hand, since Triton's interpreter would cut."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)


@triton.jit
def scale_for(x, kind: tl.constexpr):
    """Of a state x [K, BV] that is to be stored, or of the greatest in each of its parts."""
    if kind.primitive_bitwidth == 8:
        LARGEST: tl.constexpr = 127.0 if kind == tl.int8 else 448.0
        return _to_eight_bits(greatest(x) / LARGEST)
    else:
        return tl.full((x.shape[1],), 1.0, tl.float32)


@triton.jit
def narrow(x, scale, kind: tl.constexpr):
    """As it is stored."""
    if kind.primitive_bitwidth == 8:
        numbers = x / tl.where(scale == 0.0, 1.0, scale)[None, :]
        if kind == tl.int8:
            return ((numbers + ROUND) - ROUND).to(tl.int8)
        else:
            return numbers.to(kind)
    else:
        return x.to(kind)


@triton.jit
def load(
    saved, scales, slot, head, values, known,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """A tile and its scale, zero where it is not known"""
    tile = tl.arange(0, K)[:, None] * V + values[None, :]
    stored = tl.load(saved + (slot * HV + head) * K * V + tile, mask=known[None, :], other=0.0)
    return stored, load_scale(scales, slot, head, values, known, HV, V, saved.dtype.element_ty)


@triton.jit
def load_parts(
    saved, slot, head, values, known,
    HV: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, KC: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The same tile, with zeros from K up to KP, in parts of KC keys. A thread takes WIDE channels, however few bytes
    that is, and so more keys: then sums over keys need fewer exchanges between threads."""
    columns = values // WIDE * WIDE + values % WIDE  # no more than WIDE of them are known to be side by side
    some = tl.arange(0, KC)
    tile = saved + (slot * HV + head) * K * V + some[:, None] * V + columns[None, :]
    parts = ()
    for i in tl.static_range(KP // KC):
        wanted = known[None, :] & (i * KC + some < K)[:, None]
        parts += (tl.load(tile + i * KC * V, mask=wanted, other=0.0),)
    return parts


@triton.jit
def store_scale(
    scales, slot, head, values, scale, inside, HV: tl.constexpr, V: tl.constexpr, kind: tl.constexpr
):
    if kind.primitive_bitwidth == 8:
        tl.store(scales + (slot * HV + head) * V + values, scale.to(scales.dtype.element_ty), mask=inside)


@triton.jit
def store(
    saved, scales, slot, head, values, x, inside,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Round x and store it: returned as it is stored, with its scale."""
    kind: tl.constexpr = saved.dtype.element_ty
    scale = scale_for(x, kind)
    stored = narrow(x, scale, kind)
    tile = tl.arange(0, K)[:, None] * V + values[None, :]
    tl.store(saved + (slot * HV + head) * K * V + tile, stored, mask=inside[None, :])
    store_scale(scales, slot, head, values, scale, inside, HV, V, kind)
    return stored, scale


@triton.jit
def rounded(x, kind: tl.constexpr):
    """As if it had been stored and read again."""
    scale = scale_for(x, kind)
    return wide(narrow(x, scale, kind), scale)
