"""Linear attention with a fixed decay for each head: state space duality in which every time step is one.

Nothing but the temporal state is kept: there is no convolution.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..memory.spec import StateSpec, TensorSpec
from .batch import Batch, Build
from .linear import Linear, RMSNorm


@dataclass(frozen=True)
class LinearAttentionShape:
    hidden: int
    heads: int
    head_dim: int
    eps: float = 1e-6


class LinearAttention(nn.Module):
    log_decay: Tensor

    def __init__(
        self, build: Build, name: str, shape: LinearAttentionShape, log_decay: tuple[float, ...]
    ) -> None:
        """log_decay: of each head, a token"""
        super().__init__()
        if build.group.size > 1:
            raise ValueError(
                "LinearAttention: its norm is over all heads, so ranks cannot divide them; use one rank"
            )
        self.name, self.shape, self.ops = name, shape, build.ops
        inner = shape.heads * shape.head_dim
        self.qkv_proj = Linear(build, shape.hidden, 3 * inner)
        self.gate_proj = Linear(build, shape.hidden, inner)
        self.norm = RMSNorm(build, inner, shape.eps)
        self.out_proj = Linear(build, inner, shape.hidden)
        with torch.device("cpu"):  # also when the model itself is being laid out on no device
            self.register_buffer("log_decay", torch.tensor(log_decay), persistent=False)
        self.state_spec = self._declare(build)

    def _declare(self, build: Build) -> StateSpec:
        head, dim = {"head": self.shape.heads}, self.shape.head_dim
        per_head = TensorSpec(head, torch.float32, sharded="head")
        return StateSpec(
            temporal=TensorSpec(
                sizes={**head, "channel": dim, "state": dim},
                dtype=build.unscaled_state_dtype("linear attention"),
                order=build.ops.temporal_orders["ssd"],
                sharded="head",
            ),
            entry={
                "x": TensorSpec({**head, "channel": dim}, build.dtype, sharded="head"),
                "b": TensorSpec({**head, "state": dim}, build.dtype, sharded="head"),
                "dt": per_head,
                "log_decay": per_head,
            },
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        state = batch.state.layers[self.name]
        assert state.temporal is not None
        heads = self.ops.silu(self.qkv_proj(x)).unflatten(-1, (self.shape.heads, -1))
        q, k, v = heads.chunk(3, -1)
        once = torch.ones(v.shape[:-1], device=v.device)
        out = self.ops.ssd(v, k, q, once, self.log_decay * once, state.temporal, batch.step)
        normed = self.norm(out.flatten(1).to(x.dtype))
        return self.out_proj(self.ops.sigmoid(self.gate_proj(x)) * normed)
