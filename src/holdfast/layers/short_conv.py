"""LFM2's mixer: a gated short convolution. Its whole state is the convolution's last inputs."""

from __future__ import annotations

from torch import Tensor, nn

from ..distributed.group import Shard
from ..memory.spec import ConvSpec, StateSpec
from .batch import Batch, Build
from .linear import Linear, parameter


class ShortConv(nn.Module):
    def __init__(self, build: Build, name: str, hidden: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.name, self.ops = name, build.ops
        self.in_proj = Linear(
            build, hidden, 3 * hidden, bias=bias, split="out", parts=(hidden, hidden, hidden)
        )
        self.out_proj = Linear(build, hidden, hidden, bias=bias, split="in")
        shard = Shard(axis=0, parts=(hidden,), group=build.group)
        self.conv_weight = parameter((shard.local_size, 1, width), build.dtype, shard)
        self.conv_bias = parameter((shard.local_size,), build.dtype, shard) if bias else None
        self.state_spec = StateSpec(conv={"x": ConvSpec(shard.local_size, width, build.dtype)})

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        state = batch.state.layers[self.name]
        mixed = self.ops.short_conv(
            self.in_proj(x), self.conv_weight[:, 0], self.conv_bias, state.conv["x"], batch.step
        )
        return self.out_proj(mixed)
