"""Matrix products of few tokens, in Triton: bound by the bytes of the weight, which every program reads once."""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import follow


@triton.jit
def _read(rows, at, last, k, wanted):
    """[rows, BK]: inputs at .. at + BK - 1"""
    return tl.load(rows + at + k[None, :], mask=wanted & (k + at < last)[None, :], other=0.0)


@triton.jit
def few(
    x, weight, bias, out, partial, arrived, tokens, outputs, inputs, share, x_stride, weight_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr, BIASED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out [tokens, outputs] = x [tokens, inputs] @ weight [outputs, inputs]^T; at most BM tokens.

    A program takes BN outputs and `share` inputs. SPLITS > 1: the last of an output's programs to arrive adds up
    what all have left in `partial` [SPLITS, programs, BN, BM], in their order, and sets `arrived` back to 0.
    """
    block, split = tl.program_id(0), tl.program_id(1)
    n, m = block * BN + tl.arange(0, BN), tl.arange(0, BM)
    real, exists = (n < outputs)[:, None], (m < tokens)[:, None]
    first = split * share
    last = tl.minimum(first + share, inputs)
    k = tl.arange(0, BK)
    row, token = weight + n.to(tl.int64)[:, None] * weight_stride, x + m[:, None] * x_stride
    follow(EARLY)
    acc = tl.zeros((BN, BM), tl.float32)
    for at in range(first, last, BK):
        a = _read(token, at, last, k, exists).trans(1, 0)
        acc = tl.dot(_read(row, at, last, k, real), a, acc, input_precision="ieee")
    place = out + m[None, :] * outputs + n[:, None]
    written = real & (m < tokens)[None, :]
    if SPLITS == 1:
        if BIASED:
            acc += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
        tl.store(place, acc.to(out.dtype.element_ty), mask=written)
    else:
        tile = tl.arange(0, BN)[:, None] * BM + m[None, :]
        mine = partial + block * (BN * BM) + tile
        apart = tl.num_programs(0) * (BN * BM)
        tl.store(mine + split * apart, acc)
        tl.debug_barrier()
        if tl.atomic_add(arrived + block, 1, sem="acq_rel") == SPLITS - 1:
            total = tl.zeros((BN, BM), tl.float32)
            for other in tl.static_range(SPLITS):
                total += tl.load(mine + other * apart, cache_modifier=".cg")
            if BIASED:
                total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
            tl.store(place, total.to(out.dtype.element_ty), mask=written)
            tl.store(arrived + block, 0)


@triton.jit
def few_gated(
    x, weight, out, tokens, outputs, inputs, x_stride, weight_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out [tokens, outputs] = silu(x @ gate^T) * (x @ up^T), where weight [2 outputs, inputs] is gate, then up.

    Both products are rounded before they meet, as if they had been stored.
    """
    n, m, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BM), tl.arange(0, BK)
    real, exists = (n < outputs)[:, None], (m < tokens)[:, None]
    row = weight + n.to(tl.int64)[:, None] * weight_stride
    other = row + outputs.to(tl.int64) * weight_stride
    token = x + m[:, None] * x_stride
    follow(EARLY)
    gate, up = tl.zeros((BN, BM), tl.float32), tl.zeros((BN, BM), tl.float32)
    for at in range(0, inputs, BK):
        a = _read(token, at, inputs, k, exists).trans(1, 0)
        gate = tl.dot(_read(row, at, inputs, k, real), a, gate, input_precision="ieee")
        up = tl.dot(_read(other, at, inputs, k, real), a, up, input_precision="ieee")
    kind: tl.constexpr = out.dtype.element_ty
    gate = gate.to(kind).to(tl.float32)
    opened = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
    result = opened * up.to(kind).to(tl.float32)
    tl.store(out + m[None, :] * outputs + n[:, None], result.to(kind), mask=real & (m < tokens)[None, :])


@triton.jit
def one(
    x, weight, bias, out, outputs, inputs, weight_stride,
    BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `few` for a single token, without matrix instructions."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = weight + n.to(tl.int64)[:, None] * weight_stride
    real = (n < outputs)[:, None]
    w = _read(row, 0, inputs, k, real)  # before the token is there
    follow(EARLY)
    acc = w.to(tl.float32) * _read(x, 0, inputs, k, True).to(tl.float32)
    for at in range(BK, inputs, BK):
        acc += _read(row, at, inputs, k, real).to(tl.float32) * _read(x, at, inputs, k, True).to(tl.float32)
    total = tl.sum(acc, 1)
    if BIASED:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(out.dtype.element_ty), mask=n < outputs)


@triton.jit
def wide(
    x, weight, bias, out, tokens, outputs, inputs, x_stride, weight_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """As `few`, or if GATED as `few_gated`, in float32: matrix instructions would round what they multiply. A program
    takes BM tokens and BN outputs."""
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    real, exists = (n < outputs)[:, None], (m < tokens)[:, None]
    row, token = weight + n.to(tl.int64)[:, None] * weight_stride, x + m.to(tl.int64)[:, None] * x_stride
    first = _read(row, 0, inputs, k, real)  # before the tokens are there
    if GATED:
        other = row + outputs.to(tl.int64) * weight_stride
        second = _read(other, 0, inputs, k, real)
    follow(EARLY)
    a = _read(token, 0, inputs, k, exists)[:, None, :]
    acc = a * first[None, :, :]
    if GATED:
        up = a * second[None, :, :]
    for at in range(BK, inputs, BK):
        a = _read(token, at, inputs, k, exists)[:, None, :]
        acc += a * _read(row, at, inputs, k, real)[None, :, :]
        if GATED:
            up += a * _read(other, at, inputs, k, real)[None, :, :]
    total = tl.sum(acc, 2)
    if BIASED:
        total += tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
    if GATED:
        total = total * tl.sigmoid(total) * tl.sum(up, 2)
    place = out + m.to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(place, total, mask=exists & (n < outputs)[None, :])
