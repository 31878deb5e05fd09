"""Bamba (IBM, Princeton, UIUC): Mamba-2 mixers, a few attention layers in which half of a head turns, gated MLPs.

Other hybrids took over its names of fields and weights, and share what reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ConfigError, ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mamba2 import Mamba2, Mamba2Shape
from ..layers.mlp import GatedMLP
from ..layers.rotary import Rotary
from ..ops.rope.reference import RotarySpec
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary


@dataclass(frozen=True)
class BambaConfig:
    vocab_size: int
    hidden: int
    inner: int
    layers: int
    attention_layers: frozenset[int]
    eps: float
    attention: AttentionShape
    mamba: Mamba2Shape
    rotary: RotarySpec
    mlp_bias: bool
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> BambaConfig:
    fields = open_fields(values)
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-5)
    fields.only("hidden_act", "silu")
    config = BambaConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        attention_layers=frozenset(
            fields.items("attn_layer_indices") if "attn_layer_indices" in fields else ()
        ),
        eps=eps,
        attention=read_attention(fields, hidden),
        mamba=read_mamba2(fields, hidden, eps),
        rotary=rotary(fields, theta=10_000.0, fraction=0.5),
        mlp_bias=fields.flag("mlp_bias", default=False),
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=262_144),
    )
    turning = fields.integer("attn_rotary_emb", default=config.attention.head_dim // 2)
    if turning != config.attention.head_dim * config.rotary.fraction:
        raise ConfigError(
            f"config.json: attn_rotary_emb={turning} is not implemented here, only half of head_dim"
        )
    fields.ignore("attn_layer_indices", "num_logits_to_keep", "z_loss_coefficient")
    fields.finish()
    return config


def open_fields(values: Mapping[str, Any]) -> Fields:
    """With nothing where the config leaves a size open by "auto"."""
    return Fields({name: value for name, value in values.items() if value != "auto"}, "config.json")


def read_attention(fields: Fields, hidden: int) -> AttentionShape:
    heads = fields.integer("num_attention_heads")
    return AttentionShape(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=fields.integer("head_dim", default=hidden // heads),
        eps=None,
        bias=fields.flag("attention_bias", default=False),
    )


def read_mamba2(fields: Fields, hidden: int, eps: float, **options: Any) -> Mamba2Shape:
    """options: what else is to be known of the shape"""
    heads = fields.integer("mamba_n_heads", default=128)
    inner = fields.integer("mamba_d_ssm", default=fields.integer("mamba_expand", default=2) * hidden)
    shape = Mamba2Shape(
        hidden=hidden,
        heads=heads,
        head_dim=fields.integer("mamba_d_head", default=inner // heads),
        groups=fields.integer("mamba_n_groups", default=1),
        state=fields.integer("mamba_d_state", default=256),
        conv_width=fields.integer("mamba_d_conv", default=4),
        eps=eps,
        bias=fields.flag("mamba_proj_bias", default=False),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        dt_limits=fields.interval("time_step_limit", default=(0.0, math.inf)),
        **options,
    )
    if shape.inner != inner:
        raise ConfigError(
            f"config.json: mamba_n_heads * mamba_d_head is {shape.inner}, but the mixer's width is {inner}"
        )
    fields.ignore("mamba_chunk_size")
    return shape


def facts(config: BambaConfig) -> ModelFacts:
    recurrent = any(layer not in config.attention_layers for layer in range(config.layers))
    return ModelFacts(config.vocab_size, config.max_positions, recurrent=recurrent)


def build_model(build: Build, config: BambaConfig) -> CausalLM:
    positions = Rotary(config.rotary, config.attention.head_dim, build.max_positions)

    def mixer(layer: int) -> nn.Module:
        if layer in config.attention_layers:
            return Attention(build, f"blocks.{layer}", config.attention, positions)
        return Mamba2(build, f"blocks.{layer}", config.mamba)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def mlp() -> GatedMLP:
        return GatedMLP(build, config.hidden, config.inner, bias=config.mlp_bias)

    blocks = [Block(norm(), mixer(layer), norm(), mlp()) for layer in range(config.layers)]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=config.tied)


def rules(config: BambaConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    return (
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
        *mamba2_rules(layer + r"mamba\.", r"blocks.\1.mixer."),
        *rest_rules(config.tied),
    )


def rest_rules(tied: bool) -> Rules:
    """All but the mixers."""
    layer = r"model\.layers\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None if tied else r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.final_layernorm\.(.*)", r"norm.\1"),
        (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"pre_ff_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"feed_forward\.(.*)", r"blocks.\1.mlp.\2"),
    )


def mamba2_rules(there: str, here: str) -> Rules:
    """Of one mixer: `there` is its name in the files and holds one group, `here` its name in the model."""
    return (
        (there + r"conv1d\.(weight|bias)", here + r"conv_\2"),
        (there + r"norm\.weight", here + "norm_weight"),
        (there + "A_log", here + "a_log"),
        (there + "D", here + "skip"),
        (there + "(.*)", here + r"\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
