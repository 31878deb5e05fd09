"""Jamba (AI21): Mamba mixers with norms inside, a few attention layers without positions; every so often experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ConfigError, ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mamba1 import Mamba1, Mamba1Shape
from ..layers.mlp import GatedMLP
from ..layers.moe import MoE, MoEShape
from ..ops.moe.reference import Routing
from .bamba import rest_rules
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields
from .mamba import mamba1_rules, open_fields


@dataclass(frozen=True)
class JambaConfig:
    vocab_size: int
    hidden: int
    inner: int
    layers: int
    attention_layers: frozenset[int]
    expert_layers: frozenset[int]
    eps: float
    attention: AttentionShape
    mamba: Mamba1Shape
    moe: MoEShape
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> JambaConfig:
    fields = open_fields(values)
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-6)
    inner, layers = fields.integer("intermediate_size"), fields.integer("num_hidden_layers")
    moe = _moe(fields, hidden, inner)
    expert_layers = _every(fields, "expert_layer", layers, period=2, offset=1)
    config = JambaConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=inner,
        layers=layers,
        attention_layers=_every(fields, "attn_layer", layers, period=8, offset=4),
        expert_layers=expert_layers if moe.routing.experts > 1 else frozenset(),
        eps=eps,
        attention=_attention(fields, hidden),
        mamba=_mamba(fields, hidden, eps),
        moe=moe,
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=262_144),
    )
    fields.only("hidden_act", "silu")
    fields.only("sliding_window", None)
    fields.only("mamba_inner_layernorms", True)
    fields.ignore("output_router_logits", "router_aux_loss_coef", "num_logits_to_keep", "n_ctx")
    fields.ignore("calc_logits_for_entire_prompt", "use_mamba_kernels", "use_mambapy", "use_associative_scan")
    fields.finish()
    return config


def _every(fields: Fields, name: str, layers: int, *, period: int, offset: int) -> frozenset[int]:
    """The layer of this number, and one in so many from there on."""
    period = fields.integer(f"{name}_period", default=period)
    offset = fields.integer(f"{name}_offset", default=offset, least=0)
    if offset >= period:
        raise ConfigError(f"config.json: {name}_offset={offset} must be smaller than {name}_period={period}")
    return frozenset(range(offset, layers, period))


def _attention(fields: Fields, hidden: int) -> AttentionShape:
    heads = fields.integer("num_attention_heads")
    return AttentionShape(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=fields.integer("head_dim", default=hidden // heads),
        eps=None,
    )


def _mamba(fields: Fields, hidden: int, eps: float) -> Mamba1Shape:
    return Mamba1Shape(
        hidden=hidden,
        inner=fields.integer("mamba_expand", default=2) * hidden,
        state=fields.integer("mamba_d_state", default=16),
        conv_width=fields.integer("mamba_d_conv", default=4),
        dt_rank=fields.integer("mamba_dt_rank", default=-(-hidden // 16)),
        bias=fields.flag("mamba_proj_bias", default=False),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        norm="weighted",
        eps=eps,
    )


def _moe(fields: Fields, hidden: int, inner: int) -> MoEShape:
    experts = fields.integer("num_experts", "num_local_experts", default=16)
    chosen = fields.integer("num_experts_per_tok", default=2)
    routing = Routing(experts, min(chosen, experts), normalised=False)
    return MoEShape(hidden=hidden, inner=inner, routing=routing)


def facts(config: JambaConfig) -> ModelFacts:
    recurrent = any(layer not in config.attention_layers for layer in range(config.layers))
    return ModelFacts(config.vocab_size, config.max_positions, recurrent=recurrent, fold_every=1)


def build_model(build: Build, config: JambaConfig) -> CausalLM:
    def mixer(layer: int) -> nn.Module:
        if layer in config.attention_layers:
            return Attention(build, f"blocks.{layer}", config.attention, None)
        return Mamba1(build, f"blocks.{layer}", config.mamba)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def mlp(layer: int) -> nn.Module:
        if layer in config.expert_layers:
            return MoE(build, config.moe)
        return GatedMLP(build, config.hidden, config.inner)

    blocks = [Block(norm(), mixer(layer), norm(), mlp(layer)) for layer in range(config.layers)]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=config.tied)


def rules(config: JambaConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    experts, here = layer + r"feed_forward\.experts\.", r"blocks.\1.mlp.experts."
    return (
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
        (experts + "gate_up_proj", here + "up_proj.weight"),
        (experts + "down_proj", here + "down_proj.weight"),
        *mamba1_rules(layer + r"mamba\.", r"blocks.\1.mixer."),
        *rest_rules(config.tied),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
