"""Falcon-H1 (TII): attention and a Mamba-2 mixer in every layer; a multiplier wherever there could be one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ..config import ConfigError, ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Batch, Build
from ..layers.linear import RMSNorm
from ..layers.mamba2 import Mamba2, Mamba2Shape
from ..layers.mlp import GatedMLP
from ..layers.rotary import Rotary
from ..ops.rope.reference import RotarySpec
from . import bamba
from .bamba import mamba2_rules, open_fields, read_attention, read_mamba2
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary


@dataclass(frozen=True)
class Multipliers:
    """Of what goes into a mixer and what comes out, of the MLP's gate and output, of embeddings and logits."""

    attention_in: float
    attention_out: float
    mamba_in: float
    mamba_out: float
    gate: float
    down: float
    embed: float
    logits: float


@dataclass(frozen=True)
class FalconH1Config:
    vocab_size: int
    hidden: int
    inner: int
    layers: int
    eps: float
    attention: AttentionShape
    mamba: Mamba2Shape
    multipliers: Multipliers
    rotary: RotarySpec
    mlp_bias: bool
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> FalconH1Config:
    fields = open_fields(values)
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-5)
    fields.only("hidden_act", "silu")
    fields.only("mamba_use_mlp", True)
    fields.only("attn_layer_indices", None)
    config = FalconH1Config(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        eps=eps,
        attention=_attention(fields, hidden),
        mamba=_mamba(fields, hidden, eps),
        multipliers=_multipliers(fields),
        rotary=rotary(fields, theta=10_000.0),
        mlp_bias=fields.flag("mlp_bias", default=False),
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=8192),
    )
    fields.ignore("num_logits_to_keep", "mlp_expansion_factor")
    fields.finish()
    return config


def _attention(fields: Fields, hidden: int) -> AttentionShape:
    """A multiplier of keys is one of scores."""
    shape = read_attention(fields, hidden)
    return replace(shape, scale=fields.number("key_multiplier", default=1.0) * shape.head_dim**-0.5)


def _mamba(fields: Fields, hidden: int, eps: float) -> Mamba2Shape:
    normed = fields.flag("mamba_rms_norm", default=False)
    before = fields.flag("mamba_norm_before_gate", default=True)
    return read_mamba2(
        fields,
        hidden,
        eps,
        out_bias=fields.flag("projectors_bias", default=False),
        norm=("before gate" if before else "after gate") if normed else None,
        norm_groups=fields.integer("mamba_n_groups", default=1) if normed else 1,
        multipliers=_numbers(fields, "ssm_multipliers", 5),
    )


def _multipliers(fields: Fields) -> Multipliers:
    gate, down = _numbers(fields, "mlp_multipliers", 2)
    return Multipliers(
        attention_in=fields.number("attention_in_multiplier", default=1.0),
        attention_out=fields.number("attention_out_multiplier", default=1.0),
        mamba_in=fields.number("ssm_in_multiplier", default=1.0),
        mamba_out=fields.number("ssm_out_multiplier", default=1.0),
        gate=gate,
        down=down,
        embed=fields.number("embedding_multiplier", default=1.0),
        logits=fields.number("lm_head_multiplier", default=1.0),
    )


def _numbers(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    found = fields.items(name) if name in fields else (1.0,) * count
    fields.ignore(name)
    if len(found) != count or not all(isinstance(number, int | float) for number in found):
        raise ConfigError(f"config.json: {name} must be {count} numbers, not {list(found)!r}")
    return tuple(map(float, found))


class ParallelMixer(nn.Module):
    """Both mixers on the same input, their outputs added."""

    def __init__(self, by: Multipliers, attention: Attention, mamba: Mamba2) -> None:
        super().__init__()
        self.by, self.attention, self.mamba = by, attention, mamba

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        attended = self.attention(x * self.by.attention_in, batch) * self.by.attention_out
        return self.mamba(x * self.by.mamba_in, batch) * self.by.mamba_out + attended


class ScaledMLP(GatedMLP):
    def __init__(self, build: Build, config: FalconH1Config) -> None:
        super().__init__(build, config.hidden, config.inner, bias=config.mlp_bias)
        self.by = config.multipliers

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x)
        return self.down_proj(self.ops.silu(gate * self.by.gate) * up) * self.by.down


def facts(config: FalconH1Config) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent=True)


def build_model(build: Build, config: FalconH1Config) -> CausalLM:
    positions = Rotary(config.rotary, config.attention.head_dim, build.max_positions)

    def mixer(name: str) -> ParallelMixer:
        attention = Attention(build, f"{name}.attention", config.attention, positions)
        return ParallelMixer(config.multipliers, attention, Mamba2(build, f"{name}.mamba", config.mamba))

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    blocks = [
        Block(norm(), mixer(f"blocks.{i}"), norm(), ScaledMLP(build, config)) for i in range(config.layers)
    ]
    return CausalLM(
        build,
        facts(config),
        config.hidden,
        blocks,
        norm(),
        tied=config.tied,
        embed_scale=config.multipliers.embed,
        logits_scale=config.multipliers.logits,
    )


def rules(config: FalconH1Config) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    return (
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.attention.\2"),
        *mamba2_rules(layer + r"mamba\.", r"blocks.\1.mixer.mamba."),
        *bamba.rest_rules(config.tied),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
