"""Mamba-1's mixer: a convolution over x, from which dt, B and C come, then the selective scan, then a gate.

A tensor-parallel group divides the channels; dt's narrow form, B and C are the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..distributed.group import Shard
from ..memory.spec import ConvSpec, StateSpec, TensorSpec
from .batch import Batch, Build
from .linear import Linear, RMSNorm, parameter


@dataclass(frozen=True)
class Mamba1Shape:
    hidden: int
    inner: int
    state: int
    conv_width: int
    dt_rank: int
    """Channels from which the time steps of all are made."""
    bias: bool = False
    conv_bias: bool = True
    norm: str | None = None
    """Over dt's narrow form, over B and over C: "weighted", "plain", or none."""
    eps: float = 1e-6


class Mamba1(nn.Module):
    def __init__(self, build: Build, name: str, shape: Mamba1Shape) -> None:
        super().__init__()
        self.name, self.shape, self.ops = name, shape, build.ops
        inner = Shard(axis=0, parts=(shape.inner,), group=build.group)
        self.in_proj = Linear(
            build,
            shape.hidden,
            2 * shape.inner,
            bias=shape.bias,
            split="out",
            parts=(shape.inner, shape.inner),
        )
        self.conv_weight = parameter((inner.local_size, 1, shape.conv_width), build.dtype, inner)
        self.conv_bias = parameter((inner.local_size,), build.dtype, inner) if shape.conv_bias else None
        self.x_proj = Linear(build, shape.inner, shape.dt_rank + 2 * shape.state, split="in")
        self.dt_norm = _norm(build, shape.norm, shape.dt_rank, shape.eps)
        self.b_norm = _norm(build, shape.norm, shape.state, shape.eps)
        self.c_norm = _norm(build, shape.norm, shape.state, shape.eps)
        self.dt_proj = Linear(build, shape.dt_rank, shape.inner, split="out")
        self.dt_bias = parameter((inner.local_size,), torch.float32, inner)
        self.a_log = parameter((inner.local_size, shape.state), torch.float32, inner)
        self.skip = parameter((inner.local_size,), torch.float32, inner)
        self.out_proj = Linear(build, shape.inner, shape.hidden, bias=shape.bias, split="in")
        self.state_spec = self._declare(build, inner.local_size)

    def _declare(self, build: Build, channels: int) -> StateSpec:
        per_channel = {"channel": channels}
        return StateSpec(
            conv={"x": ConvSpec(channels, self.shape.conv_width, build.dtype)},
            temporal=TensorSpec(
                sizes={**per_channel, "state": self.shape.state},
                dtype=build.unscaled_state_dtype("Mamba-1"),
                order=build.ops.temporal_orders["selective_scan"],
                sharded="channel",
            ),
            entry={
                "x": TensorSpec(per_channel, build.dtype, sharded="channel"),
                "b": TensorSpec({"state": self.shape.state}, build.dtype),
                "dt": TensorSpec(per_channel, torch.float32, sharded="channel"),
            },
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        shape, state = self.shape, batch.state.layers[self.name]
        assert state.temporal is not None
        inner, gate = self.in_proj(x).chunk(2, -1)
        mixed = self.ops.causal_conv(
            inner, self.conv_weight[:, 0], self.conv_bias, state.conv["x"], batch.step
        )
        # rounded here, as the journal keeps it: window, journal and chunk form see the same bits
        inner = self.ops.silu(mixed).to(x.dtype)
        dt, b, c = self.x_proj(inner).split((shape.dt_rank, shape.state, shape.state), -1)
        dt = self.ops.softplus(self.dt_proj(self.dt_norm(dt)).float() + self.dt_bias)
        out = self.ops.selective_scan(
            inner, self.b_norm(b), self.c_norm(c), dt, -self.a_log.exp(), state.temporal, batch.step
        )
        out = out + self.skip * inner.float()
        return self.out_proj((out * self.ops.silu(gate.float())).to(x.dtype))


class PlainRMSNorm(nn.Module):
    """Without weights."""

    def __init__(self, build: Build, eps: float) -> None:
        super().__init__()
        self.ops, self.eps = build.ops, eps

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, x.new_ones(x.shape[-1]), self.eps)


def _norm(build: Build, kind: str | None, size: int, eps: float) -> nn.Module:
    if kind is None:
        return nn.Identity()
    return PlainRMSNorm(build, eps) if kind == "plain" else RMSNorm(build, size, eps)
