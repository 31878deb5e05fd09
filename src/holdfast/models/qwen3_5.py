"""Qwen3.5 (Alibaba), text: gated delta nets, and gated attention with partial rotary every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ConfigError, ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Build
from ..layers.delta_net import DeltaNet, DeltaNetShape
from ..layers.linear import RMSNorm
from ..layers.mlp import GatedMLP
from ..layers.moe import MoE, MoEShape
from ..layers.mtp import MTPHead
from ..layers.rotary import Rotary
from ..ops.rope.reference import RotarySpec
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary

KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class Qwen35Config:
    vocab_size: int
    hidden: int
    inner: int
    eps: float
    attention: AttentionShape
    delta_net: DeltaNetShape
    tied: bool
    rotary: RotarySpec
    max_positions: int
    kinds: tuple[str, ...]
    moe: MoEShape | None = None
    dense_layers: frozenset[int] = frozenset()
    """Those without experts, if others have them."""
    mtp_layers: int = 1


def parse(values: Mapping[str, Any]) -> Qwen35Config:
    fields = text_fields(values)
    return read(fields, inner=fields.integer("intermediate_size"))


def text_fields(values: Mapping[str, Any]) -> Fields:
    """The text model's config, or a config of the whole that holds one under text_config."""
    if isinstance(values.get("text_config"), Mapping):
        outer = Fields(values, "config.json")
        outer.ignore(
            "text_config", "vision_config", "image_token_id", "video_token_id", "language_model_only"
        )
        outer.ignore("vision_start_token_id", "vision_end_token_id", "tie_word_embeddings")
        outer.finish()
        tied = values["text_config"].get("tie_word_embeddings", values.get("tie_word_embeddings", False))
        return Fields({**values["text_config"], "tie_word_embeddings": tied}, "config.json: text_config")
    return Fields(values, "config.json")


def read(
    fields: Fields, *, inner: int, moe: MoEShape | None = None, dense_layers: frozenset[int] = frozenset()
) -> Qwen35Config:
    """All but the feed-forward layers, which the architectures of this family describe in different fields."""
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-6)
    fields.only("hidden_act", "silu")
    fields.only("attn_output_gate", True)
    fields.only("output_gate_type", "swish", "silu")
    fields.ignore("mamba_ssm_dtype", "mtp_use_dedicated_embeddings", "mlp_only_layers")
    config = Qwen35Config(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=inner,
        eps=eps,
        attention=AttentionShape(
            hidden=hidden,
            heads=fields.integer("num_attention_heads"),
            kv_heads=fields.integer("num_key_value_heads"),
            head_dim=fields.integer("head_dim", default=256),
            eps=eps,
            bias=fields.flag("attention_bias", default=False),
            gated=True,
            zero_centred_norm=True,
        ),
        delta_net=read_delta_net(fields, hidden, eps),
        tied=fields.flag("tie_word_embeddings", default=False),
        rotary=rotary(fields, theta=10_000.0, fraction=0.25),
        max_positions=fields.integer("max_position_embeddings", default=32768),
        kinds=_kinds(fields),
        moe=moe,
        dense_layers=dense_layers,
        mtp_layers=fields.integer("mtp_num_hidden_layers", default=1),
    )
    fields.finish()
    return config


def read_delta_net(fields: Fields, hidden: int, eps: float) -> DeltaNetShape:
    return DeltaNetShape(
        hidden=hidden,
        key_heads=fields.integer("linear_num_key_heads", default=16),
        value_heads=fields.integer("linear_num_value_heads", default=32),
        key_dim=fields.integer("linear_key_head_dim", default=128),
        value_dim=fields.integer("linear_value_head_dim", default=128),
        conv_width=fields.integer("linear_conv_kernel_dim", default=4),
        eps=eps,
    )


def _kinds(fields: Fields) -> tuple[str, ...]:
    layers = fields.integer("num_hidden_layers")
    interval = fields.integer("full_attention_interval", default=4)
    if "layer_types" in fields:
        return fields.items("layer_types", KINDS, length=layers)
    fields.ignore("layer_types")
    return tuple(KINDS[(i + 1) % interval == 0] for i in range(layers))


def facts(config: Qwen35Config) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="linear_attention" in config.kinds)


def build_model(build: Build, config: Qwen35Config) -> CausalLM:
    norm = RMSNorm(build, config.hidden, config.eps, zero_centred=True)
    blocks = _blocks(build, config, config.kinds)
    return CausalLM(build, facts(config), config.hidden, blocks, norm, tied=config.tied)


def build_mtp(build: Build, config: Qwen35Config) -> MTPHead:
    """Its layers are of the attention kind."""
    if config.mtp_layers != 1:
        raise ConfigError(
            f"config.json: mtp_num_hidden_layers={config.mtp_layers}; one layer, applied again and again, is what "
            "speculation with mtp can use"
        )
    return MTPHead(build, config.hidden, config.eps, _blocks(build, config, ("full_attention",)))


def _blocks(build: Build, config: Qwen35Config, kinds: Sequence[str]) -> list[Block]:
    positions = Rotary(config.rotary, config.attention.head_dim, build.max_positions)

    def mixer(name: str, kind: str) -> nn.Module:
        if kind == "full_attention":
            return Attention(build, name, config.attention, positions)
        return DeltaNet(build, name, config.delta_net)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps, zero_centred=True)

    def mlp(layer: int) -> nn.Module:
        if config.moe is None or layer in config.dense_layers:
            return GatedMLP(build, config.hidden, config.inner)
        return MoE(build, config.moe)

    return [Block(norm(), mixer(f"blocks.{i}", kind), norm(), mlp(i)) for i, kind in enumerate(kinds)]


def rules(config: Qwen35Config) -> Rules:
    model = r"model\.(?:language_model\.)?"
    layer = model + r"layers\.(\d+)\."
    return (
        (r"mtp\..*", None),
        (r"model\.visual\..*", None),
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (model + r"embed_tokens\.(.*)", r"embed.\1"),
        (model + r"norm\.(.*)", r"norm.\1"),
        (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"post_attention_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"linear_attn\.conv1d\.weight", r"blocks.\1.mixer.conv_weight"),
        (layer + r"linear_attn\.A_log", r"blocks.\1.mixer.a_log"),
        (layer + r"linear_attn\.norm\.weight", r"blocks.\1.mixer.norm_weight"),
        (layer + r"(?:linear_attn|self_attn)\.(.*)", r"blocks.\1.mixer.\2"),
        (layer + r"(mlp\..*)", r"blocks.\1.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules, mtp=build_mtp)
