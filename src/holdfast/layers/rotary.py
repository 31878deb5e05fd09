"""Rotary positions as a table, shared by the layers of a model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import ConfigError
from ..ops.rope.reference import RotarySpec, rotary_table


class Rotary(nn.Module):
    """cos, sin [positions, half]; not weights, so they are not in the files."""

    cos: Tensor
    sin: Tensor

    def __init__(self, spec: RotarySpec, head_dim: int, positions: int) -> None:
        super().__init__()
        turning = int(head_dim * spec.fraction)
        if turning % 2 or not 0 < turning <= head_dim:
            raise ConfigError(
                f"config.json: rotary positions turn pairs of a head's channels, so not {turning} of {head_dim}"
            )
        with torch.device("cpu"):  # also when the model itself is being laid out on no device
            cos, sin = rotary_table(spec, head_dim, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[positions], self.sin[positions]
