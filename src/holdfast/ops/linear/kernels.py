"""Matrix products of few tokens, in Triton: bound by the bytes of the weight, which every program reads once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def few(
    x, weight, bias, out, tokens, outputs, inputs, x_stride, weight_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """out [tokens, outputs] = x [tokens, inputs] @ weight [outputs, inputs]^T; at most BM tokens.

    A program takes BN outputs. WHOLE: inputs are a multiple of BK.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    row = weight + n.to(tl.int64)[:, None] * weight_stride
    token = x + m[:, None] * x_stride
    real, exists = (n < outputs)[:, None], (m < tokens)[:, None]
    acc = tl.zeros((BN, BM), tl.float32)
    for at in range(0, inputs, BK):
        inside = (k[None, :] + at < inputs) if not WHOLE else (k[None, :] >= 0)
        w = tl.load(row + at + k[None, :], mask=real & inside, other=0.0)
        a = tl.load(token + at + k[None, :], mask=exists & inside, other=0.0)
        acc = tl.dot(w, a.trans(1, 0), acc)
    if BIASED:
        acc += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    place = out + m[None, :] * outputs + n[:, None]
    tl.store(place, acc.to(out.dtype.element_ty), mask=real & (m < tokens)[None, :])


@triton.jit
def one(
    x, weight, bias, out, outputs, inputs, weight_stride,
    BN: tl.constexpr, BK: tl.constexpr, BIASED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The same for a single token, without matrix instructions."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = weight + n.to(tl.int64)[:, None] * weight_stride
    real = (n < outputs)[:, None]
    acc = tl.zeros((BN, BK), tl.float32)
    for at in range(0, inputs, BK):
        inside = (k + at < inputs) if not WHOLE else (k >= 0)
        w = tl.load(row + at + k[None, :], mask=real & inside[None, :], other=0.0)
        a = tl.load(x + at + k, mask=inside, other=0.0)
        acc += w.to(tl.float32) * a.to(tl.float32)[None, :]
    total = tl.sum(acc, 1)
    if BIASED:
        total += tl.load(bias + n, mask=n < outputs, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(out.dtype.element_ty), mask=n < outputs)
