"""The gated feed-forward block."""

from __future__ import annotations

from torch import Tensor, nn

from .batch import Build
from .linear import Linear


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, build: Build, hidden: int, inner: int, *, bias: bool = False) -> None:
        super().__init__()
        self.ops = build.ops
        self.gate_proj = Linear(build, hidden, inner, bias=bias, split="out")
        self.up_proj = Linear(build, hidden, inner, bias=bias, split="out")
        self.down_proj = Linear(build, inner, hidden, bias=bias, split="in")

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.ops.silu(self.gate_proj(x)) * self.up_proj(x))
