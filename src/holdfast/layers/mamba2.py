"""Mamba-2's mixer: one convolution over x, B and C, then state space duality, then a gated norm.

Heads are in groups that share B and C. A tensor-parallel group divides heads, and with them whole groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import ConfigError
from ..distributed.group import Shard
from ..memory.spec import ConvSpec, StateSpec, TensorSpec
from .batch import Batch, Build
from .linear import Linear, parameter


@dataclass(frozen=True)
class Mamba2Shape:
    hidden: int
    heads: int
    head_dim: int
    groups: int
    state: int
    conv_width: int
    eps: float
    bias: bool = False
    out_bias: bool | None = None
    """Of the output projection; None: as the input projection has it."""
    conv_bias: bool = True
    norm_groups: int = 1
    """The gated norm takes the root mean square of each of so many equal parts."""
    norm: str | None = "after gate"
    """Or "before gate"; None: a gate and no norm."""
    multipliers: tuple[float, float, float, float, float] | None = None
    """Of what the input projection gives: the gate, x, B, C and dt."""
    dt_limits: tuple[float, float] = (0.0, math.inf)

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise ConfigError(
                f"config.json: num_heads={self.heads} must be a multiple of n_groups={self.groups}"
            )

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim


class Mamba2(nn.Module):
    multipliers: Tensor | None

    def __init__(self, build: Build, name: str, shape: Mamba2Shape) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        _check_ranks(shape, build.group.size)
        shared = shape.groups * shape.state  # channels of B, and of C
        xbc = Shard(axis=0, parts=(shape.inner, shared, shared), group=build.group)
        inner = Shard(axis=0, parts=(shape.inner,), group=build.group)
        heads = Shard(axis=0, parts=(shape.heads,), group=build.group)
        parts = (*inner.parts, *xbc.parts, *heads.parts)
        self.in_proj = Linear(build, shape.hidden, sum(parts), bias=shape.bias, split="out", parts=parts)
        self.conv_weight = parameter((xbc.local_size, 1, shape.conv_width), build.dtype, xbc)
        self.conv_bias = parameter((xbc.local_size,), build.dtype, xbc) if shape.conv_bias else None
        self.dt_bias = parameter((heads.local_size,), torch.float32, heads)
        self.a_log = parameter((heads.local_size,), torch.float32, heads)
        self.skip = parameter((heads.local_size,), torch.float32, heads)
        if shape.norm is not None:
            self.norm_weight = parameter((inner.local_size,), build.dtype, inner)
        out_bias = shape.bias if shape.out_bias is None else shape.out_bias
        self.out_proj = Linear(build, shape.inner, shape.hidden, bias=out_bias, split="in")
        self.norm_groups = shape.norm_groups // build.group.size
        self.register_buffer("multipliers", _spread(build, shape.multipliers, parts), persistent=False)
        self.sizes = [inner.local_size, xbc.local_size, heads.local_size]
        self.xbc_sizes = [section.length for section in xbc.sections()]
        self.state_spec = self._declare(build, xbc.local_size)

    def _declare(self, build: Build, channels: int) -> StateSpec:
        shape, size = self.shape, build.group.size
        head = {"head": shape.heads // size}
        per_head = TensorSpec(head, torch.float32, sharded="head")
        return StateSpec(
            conv={"xbc": ConvSpec(channels, shape.conv_width, build.dtype)},
            temporal=TensorSpec(
                sizes={**head, "channel": shape.head_dim, "state": shape.state},
                dtype=build.unscaled_state_dtype("Mamba-2"),
                order=build.ops.temporal_orders["ssd"],
                sharded="head",
            ),
            entry={
                "x": TensorSpec({**head, "channel": shape.head_dim}, build.dtype, sharded="head"),
                "b": TensorSpec(
                    {"group": shape.groups // size, "state": shape.state}, build.dtype, sharded="group"
                ),
                "dt": per_head,
                "log_decay": per_head,
            },
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        shape, state = self.shape, batch.state.layers[self.name]
        assert state.temporal is not None
        projected = self.in_proj(x)
        if self.multipliers is not None:
            projected = projected * self.multipliers
        gate, xbc, dt = projected.split(self.sizes, -1)
        mixed = self.ops.causal_conv(
            xbc, self.conv_weight[:, 0], self.conv_bias, state.conv["xbc"], batch.step
        )
        # rounded here, as the journal keeps them: window, journal and chunk form see the same bits
        heads, b, c = self.ops.silu(mixed).to(x.dtype).split(self.xbc_sizes, -1)
        heads = heads.unflatten(-1, (-1, shape.head_dim))
        b, c = (part.unflatten(-1, (-1, shape.state)) for part in (b, c))
        dt = self.ops.softplus(dt.float() + self.dt_bias).clamp(*shape.dt_limits)
        out = self.ops.ssd(heads, b, c, dt, -self.a_log.exp() * dt, state.temporal, batch.step)
        out = out + self.skip[:, None] * heads.float()
        return self.out_proj(self._norm(out.flatten(1), gate))

    def _norm(self, x: Tensor, gate: Tensor) -> Tensor:
        """Of each part by itself, after the gate or before it."""
        if self.shape.norm is None:
            return (x * self.ops.silu(gate.float())).to(gate.dtype)
        gate_first = self.shape.norm == "after gate"
        x, gate = (part.unflatten(-1, (self.norm_groups, -1)) for part in (x, gate))
        weight = self.norm_weight.unflatten(0, (self.norm_groups, -1))
        return self.ops.gated_rms_norm(x, gate, weight, self.shape.eps, gate_first=gate_first).flatten(1)


def _spread(build: Build, multipliers: tuple[float, ...] | None, sizes: tuple[int, ...]) -> Tensor | None:
    """[channels]: each multiplier for the channels of its section."""
    if multipliers is None:
        return None
    local = torch.tensor([size // build.group.size for size in sizes], device="cpu")
    with torch.device("cpu"):  # also when the model itself is being laid out on no device
        return torch.tensor(multipliers, dtype=build.dtype).repeat_interleave(local)


def _check_ranks(shape: Mamba2Shape, ranks: int) -> None:
    for name, count in (("groups of heads", shape.groups), ("groups of its norm", shape.norm_groups)):
        if count % ranks:
            raise ValueError(
                f"Mamba2: {count} {name} cannot be divided among {ranks} ranks; use a number that divides it"
            )
