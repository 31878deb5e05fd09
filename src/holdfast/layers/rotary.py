"""Rotary positions as a table, shared by the layers of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops.rope.reference import rotary_table


class Rotary(nn.Module):
    """cos, sin [positions, dim / 2]; not weights, so they are not in the files."""

    cos: Tensor
    sin: Tensor

    def __init__(self, theta: float, dim: int, positions: int) -> None:
        super().__init__()
        with torch.device("cpu"):  # also when the model itself is being laid out on no device
            cos, sin = rotary_table(theta, dim, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[positions], self.sin[positions]
