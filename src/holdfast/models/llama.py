"""Llama (Meta), 1 to 3: grouped attention and a gated MLP, nothing recurrent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mlp import GatedMLP
from ..layers.rotary import Rotary
from ..ops.rope.reference import RotarySpec
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden: int
    inner: int
    layers: int
    eps: float
    attention: AttentionShape
    rotary: RotarySpec
    mlp_bias: bool
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> LlamaConfig:
    return read(Fields(values, "config.json"))


def read(fields: Fields) -> LlamaConfig:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    fields.only("hidden_act", "silu")
    fields.only("rope_interleaved", False)
    fields.ignore("pretraining_tp", "is_llama_config")
    config = LlamaConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        layers=fields.integer("num_hidden_layers"),
        eps=fields.number("rms_norm_eps", default=1e-6),
        attention=AttentionShape(
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", default=heads),
            head_dim=fields.integer("head_dim", default=hidden // heads),
            eps=None,
            bias=fields.flag("attention_bias", default=False),
        ),
        rotary=rotary(fields, theta=10_000.0),
        mlp_bias=fields.flag("mlp_bias", default=False),
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=2048),
    )
    fields.finish()
    return config


def facts(config: LlamaConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent=False)


def build_model(build: Build, config: LlamaConfig) -> CausalLM:
    positions = Rotary(config.rotary, config.attention.head_dim, build.max_positions)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def block(name: str) -> Block:
        mlp = GatedMLP(build, config.hidden, config.inner, bias=config.mlp_bias)
        return Block(norm(), Attention(build, name, config.attention, positions), norm(), mlp)

    blocks = [block(f"blocks.{i}") for i in range(config.layers)]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=config.tied)


def rules(config: LlamaConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.norm\.(.*)", r"norm.\1"),
        (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"post_attention_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"self_attn\.rotary_emb\.inv_freq", None),  # a table that old files still hold
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
        (layer + r"(mlp\..*)", r"blocks.\1.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
