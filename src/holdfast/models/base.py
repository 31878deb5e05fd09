"""What every architecture here is: blocks of mixer and feed-forward between an embedding and a head."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ModelFacts
from ..layers.batch import Batch, Build
from ..layers.linear import Embedding, Linear, MergedLinear, RMSNorm, Stream
from ..memory.spec import KVSpec, StateSpec
from ..ops.backend import Ops

Rules = Sequence[tuple[str, str | None]]
"""(pattern of a name in the files, the parameter's name here or None if it is not used), the first match wins."""

Rename = Callable[[str], str | None]


class MixerBlock(nn.Module):
    """x + mixer(norm(x))"""

    def __init__(self, mixer_norm: RMSNorm, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = mixer_norm, mixer

    def forward(self, stream: Stream, batch: Batch) -> Stream:
        x, normed = self.mixer_norm.of_stream(stream)
        return Stream(x, self.mixer(normed, batch))


class Block(MixerBlock):
    """x + mixer(norm(x)), then x + mlp(norm(x))"""

    def __init__(self, mixer_norm: RMSNorm, mixer: nn.Module, mlp_norm: RMSNorm, mlp: nn.Module) -> None:
        super().__init__(mixer_norm, mixer)
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(self, stream: Stream, batch: Batch) -> Stream:
        x, normed = self.mlp_norm.of_stream(super().forward(stream, batch))
        return Stream(x, self.mlp(normed))


class CausalLM(nn.Module):
    def __init__(
        self,
        build: Build,
        facts: ModelFacts,
        hidden: int,
        blocks: Sequence[nn.Module],
        norm: RMSNorm,
        *,
        tied: bool,
        residual_in_fp32: bool = False,
        embed_scale: float = 1.0,
        logits_scale: float = 1.0,
    ) -> None:
        """blocks: they take (stream, batch) and give the stream. The scales multiply embeddings and logits."""
        super().__init__()
        self.ops = build.ops
        self.embed_scale, self.logits_scale = embed_scale, logits_scale
        self.residual_dtype = torch.float32 if residual_in_fp32 else build.dtype
        self.embed = Embedding(build, facts.vocab_size, hidden)
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.head = None if tied else Linear(build, hidden, facts.vocab_size)

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states [tokens, hidden], normed."""
        return self.features(batch)[0]

    def features(self, batch: Batch, layers: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """The same, and the stream [tokens, layers, hidden] as these layers leave it, counted from 0."""
        x, tapped = self.embeddings(batch.tokens), sorted({*layers})
        taps = x.new_empty(len(x), len(tapped), x.shape[1])
        places = dict(zip(tapped, taps.unbind(1), strict=True))
        stream = Stream(x)
        for number, block in enumerate(self.blocks):
            stream = block(stream, batch)._replace(tap=places.get(number))
        hidden = self.norm.of_stream(stream)[1]
        if tapped != [*layers]:  # in another order, or one of them twice
            taps = torch.stack([places[layer] for layer in layers], 1)
        return hidden, taps.to(self.norm.weight.dtype)

    def embeddings(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).to(self.residual_dtype)
        return x if self.embed_scale == 1.0 else x * self.embed_scale

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.ops.linear(hidden, self.embed.weight) if self.head is None else self.head(hidden)
        return logits if self.logits_scale == 1.0 else logits * self.logits_scale

    @property
    def recordable(self) -> bool:
        """No layer has to ask the device about a step of windows."""
        return self.ops.records and recordable(self)

    def state_specs(self) -> dict[str, StateSpec]:
        """Asked of the layers themselves: a layer is recurrent if it says so, whatever a config says."""
        return declared(self, "state_spec")

    def kv_specs(self) -> dict[str, KVSpec]:
        return declared(self, "kv_spec")


def recordable(model: nn.Module) -> bool:
    """Do all its layers say so?"""
    return all(getattr(layer, "recordable", True) for layer in model.modules() if layer is not model)


def pack(model: nn.Module, ops: Ops, device: str) -> None:
    """Lay the weights of linear layers out as the operations like them best on that device."""
    for layer in model.modules():
        if isinstance(layer, (Linear, MergedLinear)):
            layer.weight.data = ops.packed(layer.weight.data, device)


def declared(model: nn.Module, declaration: str) -> dict[str, Any]:
    """What its layers say that they keep, by their names."""
    layers: list[Any] = [layer for layer in model.modules() if hasattr(layer, declaration)]
    return {layer.name: getattr(layer, declaration) for layer in layers}


@dataclass(frozen=True)
class Architecture:
    """How to read a config, build the model it describes, and name its weights.

    parse   hub config -> this architecture's own frozen config
    facts   what the engine sizes itself by
    build   the model, its weights not yet loaded
    rules   the weight map
    mtp     the head by which the model predicts the token after next, if it may have one
    """

    parse: Callable[[Mapping[str, Any]], Any]
    facts: Callable[[Any], ModelFacts]
    build: Callable[[Build, Any], CausalLM]
    rules: Callable[[Any], Rules]
    mtp: Callable[[Build, Any], Any] | None = None


def renamer(rules: Rules) -> Rename:
    """A name that no rule matches stays as it is, and is reported by the loader as unknown."""
    compiled = [(re.compile(pattern), target) for pattern, target in rules]

    def rename(name: str) -> str | None:
        for pattern, target in compiled:
            found = pattern.fullmatch(name)
            if found:
                return None if target is None else found.expand(target)
        return name

    return rename
