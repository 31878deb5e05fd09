"""Rotary positions, in plain torch. The first `2 * cos.shape[-1]` channels of a head turn, others pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Scaling = Callable[[Tensor], Tensor]
"""Angles per position [dim / 2] -> the same for a model whose context was stretched."""


@dataclass(frozen=True)
class LinearScaling:
    """Every position counts as 1 / factor of one."""

    factor: float

    def __call__(self, turn: Tensor) -> Tensor:
        return turn / self.factor


@dataclass(frozen=True)
class BlendedScaling:
    """What turns more than `high` times within the original context is kept, what turns less than `low` times
    is slowed down by `factor`, and what lies between is blended."""

    factor: float
    low: float
    high: float
    original_positions: int

    def __call__(self, turn: Tensor) -> Tensor:
        wavelength = 2 * math.pi / turn
        kept = ((self.original_positions / wavelength - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - kept) * turn / self.factor + kept * turn


@dataclass(frozen=True)
class RotarySpec:
    theta: float
    fraction: float = 1.0
    """How much of each head turns."""
    scaling: Scaling | None = None


def rotary_table(spec: RotarySpec, head_dim: int, positions: int) -> tuple[Tensor, Tensor]:
    """cos, sin [positions, half] in float32, made once so that a position always gets the same bits."""
    dim = int(head_dim * spec.fraction)
    turn = 1.0 / (spec.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if spec.scaling is not None:
        turn = spec.scaling(turn)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * turn
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim]; cos, sin [tokens, half]; halves are paired, not neighbours."""
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
