"""The gated delta net of Qwen3-Next and Qwen3.5: one convolution over q, k, v, then the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import ConfigError
from ..distributed.group import Shard
from ..memory.spec import ConvSpec, StateSpec, TensorSpec
from ..ops.gated_delta.front import DeltaInputs, DeltaWeights
from .batch import Batch, Build
from .linear import Linear, MergedLinear, Part, in_order, merged_parameter, parameter


@dataclass(frozen=True)
class DeltaNetShape:
    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    eps: float
    beta_scale: float = 1.0
    """What is written may replace what a key recalls, at most; with 2, turn it into its opposite."""

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
        self.in_proj = MergedLinear(
            build,
            shape.hidden,
            {
                "in_proj_qkv": qkv.parts,
                "in_proj_z": (values,),
                "in_proj_b": per_head.parts,
                "in_proj_a": per_head.parts,
            },
            other_ways=(_by_key_head(build, shape), _one_by_one(build, shape)),
        )
        self.conv_weight = merged_parameter(
            (qkv.local_size, 1, shape.conv_width), build.dtype, qkv, lambda: [_convolutions(build, shape)]
        )
        self.dt_bias = parameter((per_head.local_size,), torch.float32, per_head)
        self.a_log = parameter((per_head.local_size,), torch.float32, per_head)
        self.norm_weight = parameter((shape.value_dim,), build.dtype)
        self.out_proj = Linear(build, values, shape.hidden, split="in")
        self.state_spec = self._declare(build, qkv.local_size)
        self.recordable = build.ops.records_delta(shape.key_dim)

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
                scaled="key",
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
        qkv, z, b, a = self.in_proj(x)
        out = self.ops.delta_net(
            DeltaInputs(qkv, b, a),
            DeltaWeights(self.conv_weight[:, 0], self.a_log, self.dt_bias, shape.beta_scale),
            state.conv["qkv"],
            state.temporal,
            batch.step,
        )
        z = z.unflatten(-1, (-1, shape.value_dim))
        return self.out_proj(
            self.ops.gated_rms_norm(out.to(x.dtype), z, self.norm_weight, shape.eps).flatten(1)
        )

    def keep(self, x: Tensor, batch: Batch) -> None:
        """Of tokens that ask for nothing themselves. Their entries are made on the way to what they would be told."""
        self(x, batch)


def _one_by_one(build: Build, shape: DeltaNetShape) -> dict[str, Part]:
    """Every projection is a tensor of its own."""
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    projections = {"q_proj": keys, "k_proj": keys, "v_proj": values, "g_proj": values}
    gates = {"b_proj": shape.value_heads, "a_proj": shape.value_heads}
    return in_order(build, {name: (size,) for name, size in (projections | gates).items()})


def _convolutions(build: Build, shape: DeltaNetShape) -> dict[str, Part]:
    keys, values = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
    return in_order(build, {"q_conv1d": (keys,), "k_conv1d": (keys,), "v_conv1d": (values,)})


def _by_key_head(build: Build, shape: DeltaNetShape) -> dict[str, Part]:
    """As Qwen3-Next's files have it: q, k, v and z of one key head side by side, then of the next; b and a too."""
    ratio = shape.value_heads // shape.key_heads
    values = ratio * shape.value_dim
    return {
        "in_proj_qkvz": _interleaved(
            build, shape.key_heads, (shape.key_dim, shape.key_dim, values, values), 0
        ),
        "in_proj_ba": _interleaved(build, shape.key_heads, (ratio, ratio), 2 * shape.key_dim + 2 * values),
    }


def _interleaved(build: Build, heads: int, sizes: tuple[int, ...], before: int) -> Part:
    """Rows of `sizes` kinds for each head; here each kind's rows are together, after `before` rows per head."""
    shard = Shard(axis=0, parts=tuple(heads * size for size in sizes), group=build.group)
    first = heads * before // build.group.size

    def reorder(stored: Tensor) -> Tensor:
        return torch.cat([kind.flatten(0, 1) for kind in stored.unflatten(0, (heads, -1)).split(sizes, 1)])

    return Part((slice(first, first + shard.local_size),), shard, reorder)
