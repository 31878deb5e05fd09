"""Feed-forward blocks, with a gate and without."""

from __future__ import annotations

from torch import Tensor, nn

from .batch import Build
from .linear import Linear, MergedLinear


class MLP(nn.Module):
    """down(relu(up(x))^2)"""

    def __init__(self, build: Build, hidden: int, inner: int, *, bias: bool = False) -> None:
        super().__init__()
        self.up_proj = Linear(build, hidden, inner, bias=bias, split="out")
        self.down_proj = Linear(build, inner, hidden, bias=bias, split="in")

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(x).relu().square())


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), or with another activation"""

    gate_up_proj: nn.Module

    def __init__(
        self, build: Build, hidden: int, inner: int, *, bias: bool = False, activation: str = "silu"
    ) -> None:
        super().__init__()
        self.ops = build.ops
        self.activation = activation
        self.gate_up_proj = MergedLinear(
            build, hidden, {"gate_proj": (inner,), "up_proj": (inner,)}, bias=bias
        )
        self.down_proj = Linear(build, inner, hidden, bias=bias, split="in")

    def forward(self, x: Tensor) -> Tensor:
        merged, silu = self.gate_up_proj, self.activation == "silu"
        if silu and isinstance(merged, MergedLinear):
            return self.down_proj(self.ops.gated_linear(x, merged.weight, merged.bias))
        gate, up = merged(x)
        return self.down_proj(self.ops.silu_mul(gate, up) if silu else self.ops.gelu(gate).mul_(up))
