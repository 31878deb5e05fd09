"""Root-mean-square norms, in Triton: one program for each row, which is read once and kept in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import follow


@triton.jit
def _normed(x, scale, size, eps, kind: tl.constexpr, ZERO_CENTRED: tl.constexpr):
    """Rows of x [rows, size] over their rms, times the scale; rounded where the reference rounds."""
    normed = x * tl.rsqrt(tl.sum(x * x, 1) / size + eps)[:, None]
    if ZERO_CENTRED:
        return normed * (1.0 + scale.to(tl.float32))[None, :]
    else:
        return normed.to(kind).to(tl.float32) * scale.to(tl.float32)[None, :]


@triton.jit
def rms_norm(
    x, added, weight, summed, out, x_stride, x_head, added_stride, added_head, summed_stride, summed_head,
    out_stride, out_head, rows, heads, size, eps,
    ADD: tl.constexpr, ZERO_CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """x, added, summed, out [tokens, heads, size], `rows` (token, head) pairs in all; a program takes ROWS of them.

    ADD: summed = x + added is written, and normed; otherwise x is. Strides are those of tokens and heads.
    """
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (columns < size)[None, :] & (row < rows)[:, None]
    token, head = (row // heads).to(tl.int64)[:, None], (row % heads)[:, None]
    scale = tl.load(weight + columns, mask=columns < size, other=0.0)
    follow(EARLY)
    value = tl.load(x + token * x_stride + head * x_head + columns[None, :], mask=inside, other=0.0)
    if ADD:
        there = added + token * added_stride + head * added_head + columns[None, :]
        more = tl.load(there, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(summed.dtype.element_ty)
        tl.store(summed + token * summed_stride + head * summed_head + columns[None, :], value, mask=inside)
    result = _normed(value.to(tl.float32), scale, size, eps, weight.dtype.element_ty, ZERO_CENTRED)
    place = out + token * out_stride + head * out_head + columns[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated_rms_norm(
    x, gate, weight, out, x_stride, x_head, gate_stride, gate_head, rows, heads, size, eps,
    GATE_FIRST: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """As `rms_norm`, times silu(gate): afterwards, or before the norm."""
    row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (columns < size)[None, :] & (row < rows)[:, None]
    token, head = (row // heads).to(tl.int64)[:, None], (row % heads)[:, None]
    scale = tl.load(weight + columns, mask=columns < size, other=0.0)
    follow(EARLY)
    values = x + token * x_stride + head * x_head + columns[None, :]
    gates = gate + token * gate_stride + head * gate_head + columns[None, :]
    value = tl.load(values, mask=inside, other=0.0).to(tl.float32)
    opened = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    opened = opened * tl.sigmoid(opened)
    kind: tl.constexpr = weight.dtype.element_ty
    if GATE_FIRST:
        result = _normed(value * opened, scale, size, eps, kind, False)
    else:
        result = _normed(value, scale, size, eps, kind, False).to(kind).to(tl.float32) * opened
    tl.store(
        out + row.to(tl.int64)[:, None] * size + columns[None, :],
        result.to(out.dtype.element_ty),
        mask=inside,
    )
