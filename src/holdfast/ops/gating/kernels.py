"""Products with a gate, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import follow


@triton.jit
def gate_mul(
    gate, x, out, gate_token, gate_head, x_token, x_head, heads, size,
    SILU: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """silu(gate) * x, or sigmoid(gate) * x; all [tokens, heads, size], whose strides are given for tokens and heads.

    The opened gate is rounded to its dtype before the product, as in the reference. out is contiguous.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    follow(EARLY)
    opened = tl.load(gate + token * gate_token + head * gate_head + columns, mask=inside, other=0.0)
    wide = opened.to(tl.float32)
    wide = tl.sigmoid(wide) * (wide if SILU else 1.0)
    value = tl.load(x + token * x_token + head * x_head + columns, mask=inside, other=0.0)
    result = wide.to(opened.dtype).to(tl.float32) * value.to(tl.float32)
    tl.store(out + (token * heads + head) * size + columns, result.to(out.dtype.element_ty), mask=inside)
