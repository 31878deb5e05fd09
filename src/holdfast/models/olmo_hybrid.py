"""OLMo Hybrid (Ai2): gated delta nets whose states may turn over, normed before; attention, normed after.

The files hold every projection and convolution of a delta net as a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Batch, Build
from ..layers.delta_net import DeltaNet, DeltaNetShape
from ..layers.linear import RMSNorm, Stream, summed
from ..layers.mlp import GatedMLP
from ..layers.rotary import Rotary
from ..ops.rope.reference import RotarySpec
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary

KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class OlmoHybridConfig:
    vocab_size: int
    hidden: int
    inner: int
    eps: float
    kinds: tuple[str, ...]
    attention: AttentionShape
    delta_net: DeltaNetShape
    rotary: RotarySpec | None
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> OlmoHybridConfig:
    fields = Fields(values, "config.json")
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-6)
    heads = fields.integer("num_attention_heads")
    fields.only("hidden_act", "silu")
    config = OlmoHybridConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        eps=eps,
        kinds=_kinds(fields),
        attention=AttentionShape(
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", default=heads),
            head_dim=fields.integer("head_dim", default=hidden // heads),
            eps=eps,
            whole_norm=True,
            bias=fields.flag("attention_bias", default=False),
        ),
        delta_net=_delta_net(fields, hidden, heads),
        rotary=_rotary(fields, values),
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=65536),
    )
    fields.ignore("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max")
    fields.ignore("linear_dt_init_floor")
    fields.finish()
    return config


def _kinds(fields: Fields) -> tuple[str, ...]:
    layers = fields.integer("num_hidden_layers")
    if "layer_types" in fields:
        return fields.items("layer_types", KINDS, length=layers)
    fields.ignore("layer_types")
    return tuple(KINDS[i % 4 == 3 or (layers < 4 and i == layers - 1)] for i in range(layers))


def _delta_net(fields: Fields, hidden: int, heads: int) -> DeltaNetShape:
    key_heads = fields.integer("linear_num_key_heads", default=heads)
    key_dim = fields.integer("linear_key_head_dim", default=int(0.75 * hidden / key_heads))
    return DeltaNetShape(
        hidden=hidden,
        key_heads=key_heads,
        value_heads=fields.integer("linear_num_value_heads", default=heads),
        key_dim=key_dim,
        value_dim=fields.integer("linear_value_head_dim", default=2 * key_dim),
        conv_width=fields.integer("linear_conv_kernel_dim", default=4),
        eps=1e-5,  # of its output's norm, whatever the others have
        beta_scale=2.0 if fields.flag("linear_allow_neg_eigval", default=True) else 1.0,
    )


def _rotary(fields: Fields, values: Mapping[str, Any]) -> RotarySpec | None:
    """A base that is named and null: no positions."""
    named = values.get("rope_parameters") or {}
    if named.get("rope_theta", 0) is None:
        fields.ignore("rope_parameters")
        return None
    return rotary(fields, theta=10_000.0)


class NormedAfterBlock(nn.Module):
    """x + norm(mixer(x)), then x + norm(mlp(x))"""

    def __init__(self, mixer_norm: RMSNorm, mixer: nn.Module, mlp_norm: RMSNorm, mlp: nn.Module) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = mixer_norm, mixer
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(self, stream: Stream, batch: Batch) -> Stream:
        x = summed(stream)
        x = x + self.mixer_norm(self.mixer(x, batch))
        return Stream(x, self.mlp_norm(self.mlp(x)))


def facts(config: OlmoHybridConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="linear_attention" in config.kinds)


def build_model(build: Build, config: OlmoHybridConfig) -> CausalLM:
    spec = config.rotary
    positions = Rotary(spec, config.attention.head_dim, build.max_positions) if spec else None

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def block(name: str, kind: str) -> nn.Module:
        mlp = GatedMLP(build, config.hidden, config.inner)
        if kind == "full_attention":
            attention = Attention(build, name, config.attention, positions)
            return NormedAfterBlock(norm(), attention, norm(), mlp)
        return Block(norm(), DeltaNet(build, name, config.delta_net), norm(), mlp)

    blocks = [block(f"blocks.{i}", kind) for i, kind in enumerate(config.kinds)]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=config.tied)


def rules(config: OlmoHybridConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    after = "|".join(str(i) for i, kind in enumerate(config.kinds) if kind == "full_attention")
    normed_after = rf"model\.layers\.({after or 'none'})\."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.norm\.(.*)", r"norm.\1"),
        # files of different ages; "after attention" is before the MLP, or after attention
        (
            normed_after + r"(?:post_attention_layernorm|feedforward_layer_norm)\.(.*)",
            r"blocks.\1.mixer_norm.\2",
        ),
        (normed_after + r"post_feedforward_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"(?:input_layernorm|attention_layer_norm)\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"(?:post_attention_layernorm|feedforward_layer_norm)\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"linear_attn\.([qkv]_conv1d)\.weight", r"blocks.\1.\2.conv_weight"),  # parts of one
        (layer + r"linear_attn\.conv1d\.weight", r"blocks.\1.mixer.conv_weight"),
        (layer + r"linear_attn\.A_log", r"blocks.\1.mixer.a_log"),
        (layer + r"linear_attn\.o_norm\.weight", r"blocks.\1.mixer.norm_weight"),
        (layer + r"linear_attn\.o_proj\.(.*)", r"blocks.\1.mixer.out_proj.\2"),
        (layer + r"(?:linear_attn|self_attn)\.(.*)", r"blocks.\1.mixer.\2"),
        (layer + r"(mlp\..*)", r"blocks.\1.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
