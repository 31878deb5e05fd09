"""Softmax attention over paged keys and values: grouped heads, partial rotary; normed or gated if asked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..config import ConfigError
from ..memory.spec import KVSpec
from .batch import Batch, Build
from .linear import Linear, RMSNorm
from .rotary import Rotary


@dataclass(frozen=True)
class AttentionShape:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float | None
    """Of the norms over each query and key head; None: there are none."""
    bias: bool = False
    gated: bool = False
    """The query projection also gives a gate, head by head: [q_0 gate_0 q_1 gate_1 ...]."""
    zero_centred_norm: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads={self.heads} must be a multiple of "
                f"num_key_value_heads={self.kv_heads}"
            )


class Attention(nn.Module):
    def __init__(self, build: Build, name: str, shape: AttentionShape, rotary: Rotary) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        self.rotary = rotary
        per_query = shape.head_dim * (2 if shape.gated else 1)
        keys = shape.kv_heads * shape.head_dim
        self.q_proj = Linear(build, shape.hidden, shape.heads * per_query, bias=shape.bias, split="out")
        self.k_proj = Linear(build, shape.hidden, keys, bias=shape.bias, split="out")
        self.v_proj = Linear(build, shape.hidden, keys, bias=shape.bias, split="out")
        self.o_proj = Linear(build, shape.heads * shape.head_dim, shape.hidden, bias=shape.bias, split="in")
        self.q_norm, self.k_norm = _head_norm(build, shape), _head_norm(build, shape)
        self.kv_spec = KVSpec(shape.kv_heads // build.group.size, shape.head_dim, build.dtype)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        dim = self.shape.head_dim
        queries = self.q_proj(x).unflatten(-1, (-1, dim * (2 if self.shape.gated else 1)))
        queries, gate = queries[..., :dim], queries[..., dim:]
        keys, values = (proj(x).unflatten(-1, (-1, dim)) for proj in (self.k_proj, self.v_proj))
        cos, sin = self.rotary(batch.positions)
        queries = self.ops.rotate(self.q_norm(queries), cos, sin)
        keys = self.ops.rotate(self.k_norm(keys), cos, sin)
        mixed = self.ops.attention(
            queries, keys, values, batch.kv.layers[self.name], batch.kv.table, batch.step, dim**-0.5
        )
        if self.shape.gated:
            mixed = mixed * self.ops.sigmoid(gate)
        return self.o_proj(mixed.flatten(1))


def _head_norm(build: Build, shape: AttentionShape) -> nn.Module:
    if shape.eps is None:
        return nn.Identity()
    return RMSNorm(build, shape.head_dim, shape.eps, zero_centred=shape.zero_centred_norm)
