"""States as a pool keeps them: in its dtype, and where that has one byte, with scales.

All numbers along one axis share a scale, such that the greatest of them becomes the greatest of the dtype. The scale
is a bfloat16, so that number times scale is exact, and what was read can be stored again without a change.
"""

from __future__ import annotations

import torch
from torch import Tensor

GREATEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Of the dtypes that need a scale."""
SCALE_DTYPE = torch.bfloat16


def narrowed(x: Tensor, dtype: torch.dtype, axis: int = -1) -> tuple[Tensor, Tensor]:
    """Numbers of a scaled dtype, and their scales, of which there is one along `axis`."""
    scale = (x.abs().amax(axis, keepdim=True) / GREATEST[dtype]).to(SCALE_DTYPE)
    numbers = x / scale.float().masked_fill(scale == 0, 1.0)
    return (numbers.round() if dtype is torch.int8 else numbers).to(dtype), scale


def widened(numbers: Tensor, scale: Tensor) -> Tensor:
    return numbers.float() * scale.float()


def rounded(state: Tensor, dtype: torch.dtype) -> Tensor:
    """As if it had been stored and read again; a scale is shared along the last logical axis."""
    if dtype not in GREATEST:
        return state.to(dtype).float()
    return widened(*narrowed(state, dtype))
