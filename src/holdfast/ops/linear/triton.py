"""Matrix products of few tokens, launched. A library does those of many.

Measured on an H200 in bfloat16, microseconds for one token and for sixteen, beside cuBLAS and the bytes' own time:

    outputs x inputs     bytes   1 token, cuBLAS   16 tokens, cuBLAS
    2048 x 2048            2.0     4.4   6.2          5.8    6.3
    2048 x 8192            8.0    10.6  13.9         13.8   14.0
    2560 x 4096            5.0     7.6  10.5          9.5   10.7
    12352 x 2560          15.1    16.8  19.0         17.7   19.5
    18432 x 2560          22.5    24.0  25.9         25.1   26.8
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import kernels

FEW = 16
"""Tokens, at most."""
MANY_OUTPUTS = 6144
"""From here on programs that take several outputs are enough to occupy the device."""


def takes(x: Tensor, weight: Tensor) -> bool:
    """Is this a product that these kernels do best?"""
    narrow = weight.dtype in (torch.bfloat16, torch.float16) and x.dtype == weight.dtype
    return narrow and x.dim() == 2 and 0 < len(x) <= FEW and x.stride(1) == 1 and weight.stride(1) == 1


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    tokens, (outputs, inputs) = len(x), weight.shape
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    added = weight if bias is None else bias
    if tokens == 1 and outputs <= MANY_OUTPUTS:
        block = min(2048, triton.next_power_of_2(inputs))
        kernels.one[(outputs,)](
            x, weight, added, out, outputs, inputs, weight.stride(0),
            BN=1, BK=block, BIASED=bias is not None, WHOLE=inputs % block == 0, num_warps=4,
        )  # fmt: skip
        return out
    many = outputs >= MANY_OUTPUTS
    size, block, warps, stages = (64, 128, 4, 4) if many else (16, 512, 2, 3)
    block = min(block, max(16, triton.next_power_of_2(inputs)))
    kernels.few[(triton.cdiv(outputs, size),)](
        x, weight, added, out, tokens, outputs, inputs, x.stride(0), weight.stride(0),
        BM=FEW, BN=size, BK=block, BIASED=bias is not None, WHOLE=inputs % block == 0,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
