"""Kimi delta attention: q, k and v each through a convolution of its own, then the delta rule gated by channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..distributed.group import Shard
from ..memory.spec import ConvSpec, StateSpec, TensorSpec
from .batch import Batch, Build
from .linear import Linear, MergedLinear, parameter


@dataclass(frozen=True)
class KDAShape:
    hidden: int
    heads: int
    head_dim: int
    """Of queries, keys and values; and of the narrow vectors from which both gates are made."""
    conv_width: int
    eps: float


class KDA(nn.Module):
    def __init__(self, build: Build, name: str, shape: KDAShape) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        inner = shape.heads * shape.head_dim
        channels = Shard(axis=0, parts=(inner,), group=build.group)
        heads = Shard(axis=2, parts=(shape.heads,), group=build.group)
        self.in_proj = MergedLinear(
            build,
            shape.hidden,
            {"q_proj": (inner,), "k_proj": (inner,), "v_proj": (inner,), "b_proj": (shape.heads,)},
        )
        width = (channels.local_size, 1, shape.conv_width)
        self.conv_weights = nn.ParameterDict(
            {name: parameter(width, build.dtype, channels) for name in "qkv"}
        )
        self.f_a_proj = Linear(build, shape.hidden, shape.head_dim)
        self.f_b_proj = Linear(build, shape.head_dim, inner, split="out")
        self.dt_bias = parameter((channels.local_size,), torch.float32, channels)
        self.a_log = parameter((1, 1, heads.local_size, 1), torch.float32, heads)
        self.g_a_proj = Linear(build, shape.hidden, shape.head_dim)
        self.g_b_proj = Linear(build, shape.head_dim, inner, split="out")
        self.norm_weight = parameter((shape.head_dim,), build.dtype)
        self.o_proj = Linear(build, inner, shape.hidden, split="in")
        self.state_spec = self._declare(build, channels.local_size)

    def _declare(self, build: Build, channels: int) -> StateSpec:
        shape = self.shape
        head = {"head": shape.heads // build.group.size}
        per_key = {**head, "key": shape.head_dim}
        return StateSpec(
            conv={name: ConvSpec(channels, shape.conv_width, build.dtype) for name in "qkv"},
            temporal=TensorSpec(
                sizes={**head, "value": shape.head_dim, "key": shape.head_dim},
                dtype=build.unscaled_state_dtype("Kimi delta attention"),
                order=build.ops.temporal_orders["kda"],
                sharded="head",
            ),
            entry={
                "k": TensorSpec(per_key, build.dtype, sharded="head"),
                "u": TensorSpec({**head, "value": shape.head_dim}, torch.float32, sharded="head"),
                "log_g": TensorSpec(per_key, torch.float32, sharded="head"),
            },
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        shape, state = self.shape, batch.state.layers[self.name]
        assert state.temporal is not None
        *qkv, beta = self.in_proj(x)
        q, k, v = (
            self._heads(self._convolve(name, part, batch)) for name, part in zip("qkv", qkv, strict=True)
        )
        forget = self.f_b_proj(self.f_a_proj(x)).float() + self.dt_bias
        out = self.ops.kda(
            self.ops.l2_norm(q) * shape.head_dim**-0.5,
            self.ops.l2_norm(k).to(x.dtype),  # as the journal keeps it: every form sees the same bits
            v,
            -self.a_log[0].exp() * self._heads(self.ops.softplus(forget)),
            self.ops.sigmoid(beta.float()),
            state.temporal,
            batch.step,
        )
        gate = self.ops.sigmoid(self._heads(self.g_b_proj(self.g_a_proj(x))).float())
        normed = self.ops.rms_norm(out, self.norm_weight, shape.eps)
        return self.o_proj((normed.float() * gate).to(x.dtype).flatten(1))

    def _convolve(self, name: str, x: Tensor, batch: Batch) -> Tensor:
        pool = batch.state.layers[self.name].conv[name]
        mixed = self.ops.causal_conv(x, self.conv_weights[name][:, 0], None, pool, batch.step)
        return self.ops.silu(mixed).to(x.dtype)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.shape.head_dim))
