"""Mixture of experts: a router sends each token to a few of many feed-forward networks; perhaps one sees them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..distributed.group import Shard
from ..ops.moe.reference import Routing
from .batch import Build
from .linear import Linear, Part, merged_parameter, parameter
from .mlp import MLP, GatedMLP


@dataclass(frozen=True)
class MoEShape:
    hidden: int
    inner: int
    """Of each expert."""
    routing: Routing
    gated: bool = True
    """An expert is down(silu(gate(x)) * up(x)); else down(relu(up(x))^2)."""
    correction: bool = False
    """A bias per expert, learnt to keep their loads even, takes part in the choice and not in the weights."""
    float32_router: bool = False
    shared_inner: int | None = None
    """Of the expert that sees every token, if there is one."""
    shared_gated: bool = False
    """What that one says is multiplied by the sigmoid of one more projection."""
    latent: int | None = None
    """The width in which the chosen experts work, if it is another than the model's."""
    bias: bool = False
    """Of the shared expert's projections and those to the latent width."""


class MoE(nn.Module):
    def __init__(self, build: Build, shape: MoEShape) -> None:
        super().__init__()
        self.shape, self.ops = shape, build.ops
        self.router = Router(build, shape)
        width = shape.latent or shape.hidden
        if shape.latent is not None:
            self.into_latent = Linear(build, shape.hidden, width, bias=shape.bias)
            self.out_of_latent = Linear(build, width, shape.hidden, bias=shape.bias)
        self.experts = Experts(build, width, shape)
        if shape.shared_inner is not None:
            kind = GatedMLP if shape.gated else MLP
            self.shared = kind(build, shape.hidden, shape.shared_inner, bias=shape.bias)
        if shape.shared_gated:
            self.shared_gate = Linear(build, shape.hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        shape = self.shape
        experts, weights = self.router(x)
        if shape.latent is None:
            mixed = self.experts(x, experts, weights)
        else:
            mixed = self.out_of_latent(self.experts(self.into_latent(x), experts, weights))
        if shape.shared_inner is None:
            return mixed
        shared = self.shared(x)
        return mixed + (self.ops.sigmoid(self.shared_gate(x)) * shared if shape.shared_gated else shared)


class Router(nn.Module):
    def __init__(self, build: Build, shape: MoEShape) -> None:
        super().__init__()
        self.ops, self.routing = build.ops, shape.routing
        count = shape.routing.experts
        self.weight = parameter((count, shape.hidden), torch.float32 if shape.float32_router else build.dtype)
        self.correction = parameter((count,), torch.float32) if shape.correction else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.ops.linear(x.to(self.weight.dtype), self.weight)
        return self.ops.route(logits, self.correction, self.routing)


class Experts(nn.Module):
    """The experts of all tokens. Ranks divide each expert, not the experts among them."""

    def __init__(self, build: Build, width: int, shape: MoEShape) -> None:
        super().__init__()
        self.ops, self.group, self.gated = build.ops, build.group, shape.gated
        count, inner = shape.routing.experts, shape.inner
        names = ("gate_proj", "up_proj") if shape.gated else ("up_proj",)
        self.up_proj = Stack(build, count, width, dict.fromkeys(names, inner), split="out")
        self.down_proj = Stack(build, count, inner, {"down_proj": width}, split="in")

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        mixed = self.ops.experts(
            x, experts, weights, self.up_proj.weight, self.down_proj.weight, gated=self.gated
        )
        return self.group.all_reduce(mixed)


class Stack(nn.Module):
    """The same projections of every expert: weight [experts, outputs, inputs].

    The files hold it whole, or as a tensor for each expert and projection. Those go by such names as
    `3.gate_proj.weight` in this layer's place.
    """

    def __init__(
        self, build: Build, count: int, inputs: int, outputs: Mapping[str, int], *, split: str
    ) -> None:
        super().__init__()
        if split == "out":
            shards = {name: Shard(axis=0, parts=(size,), group=build.group) for name, size in outputs.items()}
            whole = Shard(axis=1, parts=tuple(outputs.values()), group=build.group)
            shape = (count, whole.local_size, inputs)
        else:
            shards = {name: Shard(axis=1, parts=(inputs,), group=build.group) for name in outputs}
            whole = Shard(axis=2, parts=(inputs,), group=build.group)
            shape = (count, sum(outputs.values()), whole.local_size)
        rows = shape[1] // len(outputs)

        def parts() -> list[Mapping[str, Part]]:
            each = [
                (name, slice(place * rows, (place + 1) * rows), shard)
                for place, (name, shard) in enumerate(shards.items())
            ]
            return [{f"{i}.{name}": Part((i, at), shard) for i in range(count) for name, at, shard in each}]

        self.weight = merged_parameter(shape, build.dtype, whole, parts)
