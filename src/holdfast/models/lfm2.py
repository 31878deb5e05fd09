"""LFM2 (Liquid AI): gated short convolutions, and grouped attention every few layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mlp import GatedMLP
from ..layers.moe import MoE, MoEShape
from ..layers.rotary import Rotary
from ..layers.short_conv import ShortConv
from ..ops.rope.reference import RotarySpec
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary

KINDS = ("conv", "full_attention")


@dataclass(frozen=True)
class Lfm2Config:
    vocab_size: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    eps: float
    conv_width: int
    conv_bias: bool
    tied: bool
    rotary: RotarySpec
    max_positions: int
    kinds: tuple[str, ...]
    moe: MoEShape | None = None
    dense_layers: int = 0
    """The first layers, if others have experts."""


def parse(values: Mapping[str, Any]) -> Lfm2Config:
    fields = Fields(values, "config.json")
    layers = fields.integer("num_hidden_layers")
    config = Lfm2Config(
        vocab_size=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size", "block_dim"),
        inner=_inner_size(fields),
        heads=fields.integer("num_attention_heads", "num_heads"),
        kv_heads=fields.integer("num_key_value_heads"),
        eps=fields.number("norm_eps", "block_norm_eps", default=1e-5),
        conv_width=fields.integer("conv_L_cache", default=3),
        conv_bias=fields.flag("conv_bias", default=False),
        tied=fields.flag("tie_embedding", "tie_word_embeddings", default=True),
        rotary=rotary(fields, theta=1_000_000.0),
        max_positions=fields.integer("max_position_embeddings", default=128_000),
        kinds=layer_kinds(fields, layers),
    )
    fields.only("block_use_swiglu", True)
    fields.ignore(
        "conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_use_xavier_init", "block_mlp_init_scale"
    )
    fields.ignore(
        "block_out_init_scale", "use_pos_enc", "conv_use_fast", "block_norm_eps", "block_dim", "num_heads"
    )
    fields.finish()
    return config


def _inner_size(fields: Fields) -> int:
    size = fields.integer("block_ff_dim", "intermediate_size")
    multiple = fields.integer("block_multiple_of", default=256)
    factor = fields.number("block_ffn_dim_multiplier", default=1.0)
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(factor * int(2 * size / 3))
    return multiple * -(-size // multiple)


def layer_kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    if "layer_types" in fields:
        fields.ignore("full_attn_idxs")
        return fields.items("layer_types", KINDS, length=layers)
    attention = fields.items("full_attn_idxs") if "full_attn_idxs" in fields else range(layers)
    fields.ignore("layer_types")
    return tuple("full_attention" if i in attention else "conv" for i in range(layers))


def facts(config: Lfm2Config) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="conv" in config.kinds)


def build_model(build: Build, config: Lfm2Config) -> CausalLM:
    head_dim = config.hidden // config.heads
    positions = Rotary(config.rotary, head_dim, build.max_positions)
    attention = AttentionShape(config.hidden, config.heads, config.kv_heads, head_dim, config.eps)

    def mixer(name: str, kind: str) -> nn.Module:
        if kind == "full_attention":
            return Attention(build, name, attention, positions)
        return ShortConv(build, name, config.hidden, config.conv_width, bias=config.conv_bias)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def mlp(layer: int) -> nn.Module:
        if config.moe is None or layer < config.dense_layers:
            return GatedMLP(build, config.hidden, config.inner)
        return MoE(build, config.moe)

    blocks = [
        Block(norm(), mixer(f"blocks.{i}", kind), norm(), mlp(i)) for i, kind in enumerate(config.kinds)
    ]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=config.tied)


def rules(config: Lfm2Config) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.embedding_norm\.(.*)", r"norm.\1"),
        (layer + r"operator_norm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"ffn_norm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"conv\.conv\.(weight|bias)", r"blocks.\1.mixer.conv_\2"),
        (layer + r"conv\.(.*)", r"blocks.\1.mixer.\2"),
        (layer + r"self_attn\.out_proj\.(.*)", r"blocks.\1.mixer.o_proj.\2"),
        (layer + r"self_attn\.(q|k)_layernorm\.(.*)", r"blocks.\1.mixer.\2_norm.\3"),
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
        (layer + r"feed_forward\.w1\.(.*)", r"blocks.\1.mlp.gate_proj.\2"),
        (layer + r"feed_forward\.w3\.(.*)", r"blocks.\1.mlp.up_proj.\2"),
        (layer + r"feed_forward\.w2\.(.*)", r"blocks.\1.mlp.down_proj.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
