"""Qwen3 (Alibaba), dense: Llama's blocks, with a norm over each query and key head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layers.attention import AttentionShape
from .base import Architecture
from .fields import Fields, rotary
from .llama import LlamaConfig, build_model, facts, rules


def parse(values: Mapping[str, Any]) -> LlamaConfig:
    return read(Fields(values, "config.json"), head_dim=128)


def read(fields: Fields, *, head_dim: int) -> LlamaConfig:
    """head_dim: if the config does not name it"""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    eps = fields.number("rms_norm_eps", default=1e-6)
    fields.only("hidden_act", "silu")
    layers = fields.integer("num_hidden_layers")
    _refuse_sliding_window(fields, layers)
    config = LlamaConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        layers=layers,
        eps=eps,
        attention=AttentionShape(
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", default=heads),
            head_dim=fields.integer("head_dim", default=head_dim),
            eps=eps,
            bias=fields.flag("attention_bias", default=False),
        ),
        rotary=rotary(fields, theta=10_000.0),
        mlp_bias=False,
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=32768),
    )
    fields.finish()
    return config


def _refuse_sliding_window(fields: Fields, layers: int) -> None:
    fields.only("use_sliding_window", False)
    if "layer_types" in fields:
        fields.items("layer_types", ("full_attention",), length=layers)
    fields.ignore("layer_types", "sliding_window", "max_window_layers")  # unused while it is off


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
