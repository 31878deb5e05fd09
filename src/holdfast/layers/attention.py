"""Softmax attention over paged keys and values: grouped heads, rotary positions or none; normed or gated if asked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..config import ConfigError
from ..memory.spec import KVSpec
from ..ops.attention.heads import HeadNorms, Heads, Turn
from .batch import Batch, Build
from .linear import Linear, MergedLinear, RMSNorm
from .rotary import Rotary


@dataclass(frozen=True)
class AttentionShape:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float | None
    """Of the norms over each query and key head; None: there are none."""
    whole_norm: bool = False
    """They are over all heads together."""
    bias: bool = False
    gated: bool = False
    """The query projection also gives a gate, head by head: [q_0 gate_0 q_1 gate_1 ...]."""
    zero_centred_norm: bool = False
    scale: float | None = None
    """Of the scores; None: 1 / sqrt(head_dim)."""
    inputs: int | None = None
    """What it reads is so wide; None: as what it gives."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads={self.heads} must be a multiple of "
                f"num_key_value_heads={self.kv_heads}"
            )


class Attention(nn.Module):
    qkv_proj: nn.Module

    def __init__(self, build: Build, name: str, shape: AttentionShape, rotary: Rotary | None) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        self.rotary = rotary
        self.scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        queries = shape.heads * shape.head_dim * (2 if shape.gated else 1)
        keys = shape.kv_heads * shape.head_dim
        self.qkv_proj = MergedLinear(
            build,
            shape.inputs or shape.hidden,
            {"q_proj": (queries,), "k_proj": (keys,), "v_proj": (keys,)},
            bias=shape.bias,
        )
        self.o_proj = Linear(build, shape.heads * shape.head_dim, shape.hidden, bias=shape.bias, split="in")
        self.q_norm, self.k_norm = (_norm(build, shape, heads) for heads in (shape.heads, shape.kv_heads))
        self.kv_spec = KVSpec(shape.kv_heads // build.group.size, shape.head_dim, build.dtype)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        dim = self.shape.head_dim
        queries, keys, values = self._project(x)
        queries, gate = queries[..., :dim], queries[..., dim:]
        mixed = self.ops.attention(
            queries,
            keys,
            values,
            self._heads(),
            batch.kv.layers[self.name],
            batch.kv.table,
            batch.step,
        )
        if self.shape.gated:
            mixed = self.ops.sigmoid_mul(gate, mixed)
        return self.o_proj(mixed.flatten(1))

    def keep(self, x: Tensor, batch: Batch) -> None:
        """Keys and values of tokens that ask for nothing themselves."""
        _, keys, values = self._project(x)
        pool, table = batch.kv.layers[self.name], batch.kv.table
        self.ops.keep_kv(keys, values, self._heads(), pool, table, batch.step)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Heads of queries, each with its gate if there are gates; of keys; of values."""
        dim = self.shape.head_dim
        queries, keys, values = self.qkv_proj(x)
        if self.shape.whole_norm:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = queries.unflatten(-1, (-1, dim * (2 if self.shape.gated else 1)))
        return queries, keys.unflatten(-1, (-1, dim)), values.unflatten(-1, (-1, dim))

    def _heads(self) -> Heads:
        shape, rotary = self.shape, self.rotary
        norms = None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm) and not shape.whole_norm:
            zero_centred = shape.zero_centred_norm
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, zero_centred)
        return Heads(self.scale, norms, None if rotary is None else Turn(rotary.cos, rotary.sin))


def _norm(build: Build, shape: AttentionShape, heads: int) -> nn.Module:
    if shape.eps is None:
        return nn.Identity()
    if shape.whole_norm and build.group.size > 1:
        raise ValueError("Attention: its norm is over all heads, so ranks cannot divide them; use one rank")
    size = shape.head_dim * (heads if shape.whole_norm else 1)
    return RMSNorm(build, size, shape.eps, zero_centred=shape.zero_centred_norm)
