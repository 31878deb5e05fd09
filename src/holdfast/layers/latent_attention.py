"""Attention over latents: one narrow vector a token, kept in the pages, of which every head has its own view.

A head's keys are `key_up` of the latent beside a part that all heads share, its values `value_up` of the latent. Both
are linear, so a query is turned into the latent's space instead, and what attention gives is turned back: the
keys and values of the heads are never made. No positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..distributed.group import Shard
from ..memory.spec import KVSpec
from .batch import Batch, Build
from .linear import Linear, RMSNorm, parameter


@dataclass(frozen=True)
class LatentShape:
    hidden: int
    heads: int
    latent: int
    own_dim: int
    """Of a head's query and key: what comes from the latent,"""
    shared_dim: int
    """and what all heads share."""
    value_dim: int
    query_rank: int | None = None
    """Queries are made through so narrow a vector, if any."""
    bias: bool = False
    """Of the projections into narrow vectors, and of the output's."""
    eps: float = 1e-6


class LatentAttention(nn.Module):
    def __init__(self, build: Build, name: str, shape: LatentShape) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        self.scale = (shape.own_dim + shape.shared_dim) ** -0.5
        queries = shape.heads * (shape.own_dim + shape.shared_dim)
        if shape.query_rank is None:
            self.q_proj = Linear(build, shape.hidden, queries, split="out")
        else:
            self.q_a_proj = Linear(build, shape.hidden, shape.query_rank, bias=shape.bias)
            self.q_norm = RMSNorm(build, shape.query_rank, shape.eps)
            self.q_b_proj = Linear(build, shape.query_rank, queries, split="out")
        self.kv_a_proj = Linear(build, shape.hidden, shape.latent + shape.shared_dim, bias=shape.bias)
        self.kv_norm = RMSNorm(build, shape.latent, shape.eps)
        up = Shard(axis=0, parts=(shape.heads * (shape.own_dim + shape.value_dim),), group=build.group)
        self.kv_b_weight = parameter((up.local_size, shape.latent), build.dtype, up)
        self.o_proj = Linear(build, shape.heads * shape.value_dim, shape.hidden, bias=shape.bias, split="in")
        self.kv_spec = KVSpec(1, shape.latent + shape.shared_dim, build.dtype, value_dim=0)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        shape = self.shape
        latent, shared = self.kv_a_proj(x).split((shape.latent, shape.shared_dim), -1)
        latents = torch.cat((self.kv_norm(latent), shared), -1)
        up = self.kv_b_weight.unflatten(0, (-1, shape.own_dim + shape.value_dim))
        key_up, value_up = up.split((shape.own_dim, shape.value_dim), 1)  # [heads, own or value, latent]
        own, other = self._queries(x).split((shape.own_dim, shape.shared_dim), -1)
        mixed = self.ops.latent_attention(
            torch.cat((self.ops.linear_per_head(own, key_up.mT), other), -1),
            latents,
            batch.kv.layers[self.name],
            batch.kv.table,
            batch.step,
            self.scale,
            value_dim=shape.latent,
        )
        return self.o_proj(self.ops.linear_per_head(mixed, value_up).flatten(1))

    def _queries(self, x: Tensor) -> Tensor:
        through = self.shape.query_rank is not None
        queries = self.q_b_proj(self.q_norm(self.q_a_proj(x))) if through else self.q_proj(x)
        return queries.unflatten(-1, (-1, self.shape.own_dim + self.shape.shared_dim))
