"""Rotary positions, in plain torch. The first `2 * cos.shape[-1]` channels of a head turn, the others pass."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(theta: float, dim: int, positions: int) -> tuple[Tensor, Tensor]:
    """cos, sin [positions, dim / 2] in float32, made once so that a position always gets the same bits."""
    inverse = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim]; cos, sin [tokens, half]; halves are paired, not neighbours."""
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
