"""MiniMax-Text-01 (MiniMax): linear attention with fixed decays, softmax attention now and then, experts throughout.

What is carried past a layer is the normed input, not the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Batch, Build
from ..layers.linear import RMSNorm, Stream
from ..layers.linear_attention import LinearAttention, LinearAttentionShape
from ..layers.moe import MoE, MoEShape
from ..layers.rotary import Rotary
from ..ops.moe.reference import Routing
from ..ops.rope.reference import RotarySpec
from .base import Architecture, CausalLM, Rules
from .fields import Fields, rotary

KINDS = ("full_attention", "linear_attention")


@dataclass(frozen=True)
class Weights:
    """Of what is carried past a layer, and of what the layer gives."""

    carried: float
    added: float


@dataclass(frozen=True)
class MiniMaxConfig:
    vocab_size: int
    hidden: int
    eps: float
    kinds: tuple[str, ...]
    attention: AttentionShape
    rotary: RotarySpec
    moe: MoEShape
    weights: Mapping[str, Weights]
    """Of each kind of mixer, and of the experts."""
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> MiniMaxConfig:
    fields = Fields(values, "config.json")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    fields.only("hidden_act", "silu")
    fields.only("sliding_window", None)
    config = MiniMaxConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        eps=fields.number("rms_norm_eps", default=1e-5),
        kinds=_kinds(fields),
        attention=AttentionShape(
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", default=heads),
            head_dim=fields.integer("head_dim", default=hidden // heads),
            eps=None,
        ),
        rotary=rotary(fields, theta=1_000_000.0),
        moe=MoEShape(
            hidden=hidden,
            inner=fields.integer("intermediate_size"),
            routing=Routing(
                experts=fields.integer("num_local_experts", "num_experts", default=8),
                chosen=fields.integer("num_experts_per_tok", default=2),
            ),
        ),
        weights={
            "full_attention": _weights(fields, "full_attn"),
            "linear_attention": _weights(fields, "linear_attn"),
            "experts": _weights(fields, "mlp"),
        },
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=131_072),
    )
    fields.ignore("block_size", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
    fields.finish()
    return config


def _kinds(fields: Fields) -> tuple[str, ...]:
    layers = fields.integer("num_hidden_layers")
    if "layer_types" in fields:
        return fields.items("layer_types", KINDS, length=layers)
    fields.ignore("layer_types")
    return tuple(KINDS[i % 2] for i in range(layers))


def _weights(fields: Fields, name: str) -> Weights:
    return Weights(
        fields.number(f"{name}_alpha_factor", default=1.0), fields.number(f"{name}_beta_factor", default=1.0)
    )


def _log_decay(config: MiniMaxConfig, layer: int) -> tuple[float, ...]:
    """Heads forget at rates from 2^(-8 / heads) a token down to 2^-8; later layers more slowly."""
    heads = config.attention.heads
    slower = 1 - layer / (len(config.kinds) - 1 + 1e-5) + 1e-5
    return tuple(-slower * 2 ** (-8 * (head + 1) / heads) for head in range(heads))


class NormedBlock(nn.Module):
    """y = norm(x), then y * carried + mixer(y) * added; the same with the experts."""

    def __init__(
        self,
        norms: tuple[RMSNorm, RMSNorm],
        mixer: nn.Module,
        mlp: nn.Module,
        weights: tuple[Weights, Weights],
    ) -> None:
        super().__init__()
        self.mixer_norm, self.mlp_norm = norms
        self.mixer, self.mlp = mixer, mlp
        self.mixer_weights, self.mlp_weights = weights

    def forward(self, stream: Stream, batch: Batch) -> Stream:
        _, x = self.mixer_norm.of_stream(stream)
        x = x * self.mixer_weights.carried + self.mixer(x, batch) * self.mixer_weights.added
        x = self.mlp_norm(x)
        return Stream(x * self.mlp_weights.carried, self.mlp(x) * self.mlp_weights.added)


def facts(config: MiniMaxConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="linear_attention" in config.kinds)


def build_model(build: Build, config: MiniMaxConfig) -> CausalLM:
    shape = config.attention
    positions = Rotary(config.rotary, shape.head_dim, build.max_positions)
    linear = LinearAttentionShape(config.hidden, shape.heads, shape.head_dim)

    def mixer(layer: int, kind: str) -> nn.Module:
        if kind == "full_attention":
            return Attention(build, f"blocks.{layer}", shape, positions)
        return LinearAttention(build, f"blocks.{layer}", linear, _log_decay(config, layer))

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    blocks = [
        NormedBlock(
            (norm(), norm()),
            mixer(layer, kind),
            MoE(build, config.moe),
            (config.weights[kind], config.weights["experts"]),
        )
        for layer, kind in enumerate(config.kinds)
    ]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=config.tied)


def rules(config: MiniMaxConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    expert = layer + r"block_sparse_moe\.experts\.(\d+)\."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.norm\.(.*)", r"norm.\1"),
        (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"post_attention_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"self_attn\.(?:slope_rate|(?:query|key|diagonal)_decay)", None),  # computed here
        (layer + r"self_attn\.output_gate\.(.*)", r"blocks.\1.mixer.gate_proj.\2"),
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
        (layer + r"block_sparse_moe\.gate\.weight", r"blocks.\1.mlp.router.weight"),
        (expert + r"w1\.(.*)", r"blocks.\1.mlp.experts.\2.gate_proj.\3"),
        (expert + r"w3\.(.*)", r"blocks.\1.mlp.experts.\2.up_proj.\3"),
        (expert + r"w2\.(.*)", r"blocks.\1.mlp.experts.\2.down_proj.\3"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
