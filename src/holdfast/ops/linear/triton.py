"""Matrix products of few tokens, launched. A library does those of many.

Measured on an H200 in bfloat16 (two runs, tiles as below or near them), microseconds for one token and for sixteen,
beside cuBLAS and the bytes' own time:

    outputs x inputs     bytes   1 token, cuBLAS   16 tokens, cuBLAS
    2048 x 2048            2.0     4.8   5.9          6.0    6.4
    2048 x 8192            8.0    11.8  13.0         11.8   13.0
    2560 x 4096            5.0     8.4   9.8          9.2    9.9
    2560 x 9216           11.2    14.9  16.1         15.7   16.6
    12352 x 2560          15.1    16.8  19.0         18.0   19.7
    18432 x 2560, gated   22.5                       26.9   33.8 in three launches

In float32, where matrix instructions would round, for 1, 4, 8, 16 and 64 tokens beside cuBLAS, which has kernels for
some numbers of tokens that take ten times as long as those for others:

    outputs x inputs     1         4         8          16         64
    256 x 256          1.2  2.4  1.3  5.7  1.6  31.2  1.8  31.2   2.7   6.1
    256 x 576          1.3  2.7  2.4  6.6  2.9  31.3  2.9   4.9   4.7   7.4
    1024 x 256         1.8  2.6  1.5  2.5  2.0   3.1  2.4   6.3   6.3   6.9
    4096 x 256                   2.6  3.4  3.4   4.7  6.2   8.0  21.4   8.7
    4096 x 2048        6.4  7.8 12.1 13.0 14.8  20.2 29.4  31.2 111.4  34.7
    2048 x 8192       17.8 17.5 38.3 43.3 45.8  81.2 68.2  73.5 265.9  74.1
    1152 x 256, gated  1.3  6.2  1.5  5.6  2.5   6.3  3.6   9.5 in three launches
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor

from ..twins.launch import early
from . import kernels

FEW = 16
"""Tokens, at most."""
MANY_OUTPUTS = 6144
"""From here on programs that take several outputs are enough to occupy the device."""
ONE_WIDE = 2048
"""In float32 that is from here on, if inputs are few."""
MOST_BLOCKS = 1 << 14
"""Of outputs whose inputs are split."""


@dataclass(frozen=True)
class Tiles:
    """Outputs of a program, inputs that it reads at a time, its warps and stages; and into how many parts inputs are
    split among programs."""

    outputs: int
    inputs: int
    warps: int
    stages: int = 3
    splits: int = 1


WIDE = Tiles(64, 128, warps=4, stages=4)
NARROW = Tiles(32, 128, warps=2, stages=4, splits=4)
GATED = Tiles(64, 64, warps=4, stages=4)
ONE = Tiles(1, 1024, warps=2)
FLOAT = Tiles(4, 128, warps=1)
FLOAT_NARROW = Tiles(2, 256, warps=1)
FLOAT_GATED = Tiles(2, 128, warps=1)
FLOAT_TOKENS = 8
"""Of a program, in float32."""
FLOAT_PRODUCTS = 1 << 24
"""In float32 also more tokens, while these are no more."""


def takes(x: Tensor, weight: Tensor) -> bool:
    """Is this a product that these kernels do best?"""
    if x.dim() != 2 or x.dtype != weight.dtype or x.stride(1) != 1 or weight.stride(1) != 1:
        return False
    if weight.dtype == torch.float32:
        return len(x) > 0 and (len(x) <= FEW or len(x) * weight.numel() <= FLOAT_PRODUCTS)
    return weight.dtype in (torch.bfloat16, torch.float16) and 0 < len(x) <= FEW


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, tiles: Tiles | None = None) -> Tensor:
    tokens, (outputs, inputs) = len(x), weight.shape
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    added = weight if bias is None else bias
    wide = x.dtype == torch.float32
    if tokens == 1 and outputs <= (MANY_OUTPUTS if inputs > ONE.inputs or not wide else ONE_WIDE):
        tiles = ONE if tiles is None else tiles
        kernels.one[(triton.cdiv(outputs, tiles.outputs),)](
            x, weight, added, out, outputs, inputs, weight.stride(0),
            BN=tiles.outputs, BK=min(tiles.inputs, triton.next_power_of_2(inputs)), BIASED=bias is not None,
            num_warps=tiles.warps, **early(x.device),
        )  # fmt: skip
        return out
    if wide:
        return _wide(x, weight, bias, out, tiles or _float_tiles(tokens, outputs))
    tiles = (WIDE if outputs >= MANY_OUTPUTS else NARROW) if tiles is None else tiles
    blocks, block = triton.cdiv(outputs, tiles.outputs), _block(tiles.inputs, inputs)
    share = triton.cdiv(triton.cdiv(inputs, tiles.splits), block) * block
    splits = triton.cdiv(inputs, share)
    partial = arrived = out
    if splits > 1:
        partial = torch.empty(splits, blocks, tiles.outputs, FEW, dtype=torch.float32, device=x.device)
        arrived = _arrived(x.device)
    kernels.few[(blocks, splits)](
        x, weight, added, out, partial, arrived, tokens, outputs, inputs, share, x.stride(0), weight.stride(0),
        BM=FEW, BN=tiles.outputs, BK=block, SPLITS=splits, BIASED=bias is not None,
        num_warps=tiles.warps, num_stages=tiles.stages, **early(x.device),
    )  # fmt: skip
    return out


def gated(x: Tensor, weight: Tensor, tiles: Tiles | None = None) -> Tensor:
    """silu(x @ gate^T) * (x @ up^T) of a weight that is gate, then up."""
    tokens, (outputs, inputs) = len(x), weight.shape
    out = torch.empty(tokens, outputs // 2, dtype=x.dtype, device=x.device)
    if x.dtype == torch.float32:
        return _wide(
            x, weight, None, out, tiles or (FLOAT_NARROW if tokens <= 4 else FLOAT_GATED), gated=True
        )
    tiles = tiles or GATED
    kernels.few_gated[(triton.cdiv(outputs // 2, tiles.outputs),)](
        x, weight, out, tokens, outputs // 2, inputs, x.stride(0), weight.stride(0),
        BM=FEW, BN=tiles.outputs, BK=_block(tiles.inputs, inputs), num_warps=tiles.warps, num_stages=tiles.stages,
        **early(x.device),
    )  # fmt: skip
    return out


def _float_tiles(tokens: int, outputs: int) -> Tiles:
    return FLOAT_NARROW if outputs < 1024 or (outputs <= 2048 and tokens <= FLOAT_TOKENS) else FLOAT


def _wide(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tiles: Tiles, *, gated: bool = False
) -> Tensor:
    tokens, outputs = out.shape
    taken, inputs = min(FLOAT_TOKENS, triton.next_power_of_2(tokens)), weight.shape[1]
    kernels.wide[(triton.cdiv(outputs, tiles.outputs), triton.cdiv(tokens, taken))](
        x, weight, weight if bias is None else bias, out, tokens, outputs, inputs, x.stride(0), weight.stride(0),
        BM=taken, BN=tiles.outputs, BK=_block(tiles.inputs, inputs), BIASED=bias is not None, GATED=gated,
        num_warps=tiles.warps, **early(x.device),
    )  # fmt: skip
    return out


def _block(wanted: int, inputs: int) -> int:
    return min(wanted, max(FEW, triton.next_power_of_2(inputs)))


@cache
def _arrived(device: torch.device) -> Tensor:
    """Of every block of outputs, its programs that have arrived; all of them leave a 0. One stream uses it."""
    return torch.zeros(MOST_BLOCKS, dtype=torch.int32, device=device)
