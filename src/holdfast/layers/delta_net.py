"""The gated delta net of Qwen3-Next and Qwen3.5: one convolution over q, k, v, then the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import ConfigError
from ..distributed.group import Shard
from ..memory.spec import ConvSpec, StateSpec, TensorSpec
from .batch import Batch, Build
from .linear import Linear, parameter


@dataclass(frozen=True)
class DeltaNetShape:
    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    eps: float

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ConfigError(
                f"config.json: linear_num_value_heads={self.value_heads} must be a multiple of "
                f"linear_num_key_heads={self.key_heads}"
            )


class DeltaNet(nn.Module):
    def __init__(self, build: Build, name: str, shape: DeltaNetShape) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        qkv = Shard(axis=0, parts=(keys, keys, values), group=build.group)
        per_head = Shard(axis=0, parts=(shape.value_heads,), group=build.group)
        self.in_proj_qkv = Linear(build, shape.hidden, qkv.full_size, split="out", parts=qkv.parts)
        self.in_proj_z = Linear(build, shape.hidden, values, split="out")
        self.in_proj_b = Linear(build, shape.hidden, shape.value_heads, split="out")
        self.in_proj_a = Linear(build, shape.hidden, shape.value_heads, split="out")
        self.conv_weight = parameter((qkv.local_size, 1, shape.conv_width), build.dtype, qkv)
        self.dt_bias = parameter((per_head.local_size,), torch.float32, per_head)
        self.a_log = parameter((per_head.local_size,), torch.float32, per_head)
        self.norm_weight = parameter((shape.value_dim,), build.dtype)
        self.out_proj = Linear(build, values, shape.hidden, split="in")
        _, self.keys, self.values = (section.length for section in qkv.sections())
        self.state_spec = self._declare(build, qkv.local_size)

    def _declare(self, build: Build, channels: int) -> StateSpec:
        shape, size = self.shape, build.group.size
        heads = {"head": shape.value_heads // size}
        return StateSpec(
            conv={"qkv": ConvSpec(channels, shape.conv_width, build.dtype)},
            temporal=TensorSpec(
                sizes={**heads, "value": shape.value_dim, "key": shape.key_dim},
                dtype=build.state_dtype,
                order=build.ops.temporal_orders["gated_delta"],
                sharded="head",
            ),
            entry={
                "k": TensorSpec(
                    {"head": shape.key_heads // size, "key": shape.key_dim}, build.dtype, sharded="head"
                ),
                "u": TensorSpec({**heads, "value": shape.value_dim}, torch.float32, sharded="head"),
                "log_g": TensorSpec(heads, torch.float32, sharded="head"),
            },
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        shape, state = self.shape, batch.state.layers[self.name]
        assert state.temporal is not None
        mixed = self.ops.causal_conv(
            self.in_proj_qkv(x), self.conv_weight[:, 0], None, state.conv["qkv"], batch.step
        )
        qk, v = self.ops.silu(mixed).to(x.dtype).split((2 * self.keys, self.values), -1)
        q, k = self.ops.l2_norm(qk.unflatten(-1, (-1, shape.key_dim))).chunk(2, 1)
        out = self.ops.gated_delta(
            q * shape.key_dim**-0.5,
            k.to(x.dtype),  # as the journal keeps it: window, journal and chunk form see the same bits
            v.unflatten(-1, (-1, shape.value_dim)),
            -self.a_log.exp() * self.ops.softplus(self.in_proj_a(x).float() + self.dt_bias),
            self.ops.sigmoid(self.in_proj_b(x).float()),
            state.temporal,
            batch.step,
        )
        z = self.in_proj_z(x).unflatten(-1, (-1, shape.value_dim))
        return self.out_proj(
            self.ops.gated_rms_norm(out.to(x.dtype), z, self.norm_weight, shape.eps).flatten(1)
        )
