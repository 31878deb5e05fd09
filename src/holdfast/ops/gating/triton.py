"""Products with a gate, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..twins.launch import early
from . import kernels

BLOCK = 1024


def gate_mul(gate: Tensor, x: Tensor, *, silu: bool) -> Tensor:
    """silu(gate) * x, or sigmoid(gate) * x, of views [tokens, (heads,) size] whose last axis is contiguous."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    gate, x = (t if t.dim() == 3 else t[:, None] for t in (gate, x))
    tokens, heads, size = x.shape
    block = min(BLOCK, triton.next_power_of_2(size))
    kernels.gate_mul[(tokens, heads, triton.cdiv(size, block))](
        gate, x, out, gate.stride(0), gate.stride(1), x.stride(0), x.stride(1), heads, size,
        SILU=silu, BLOCK=block, num_warps=max(1, block // 256), **early(x.device),
    )  # fmt: skip
    return out
