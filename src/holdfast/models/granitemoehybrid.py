"""Granite 4 (IBM): Mamba-2 mixers, few attention layers mostly without positions, a shared expert and perhaps others.

Four multipliers: of embeddings, of what a layer adds to the residual stream, of attention scores, and of logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..config import ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Batch, Build
from ..layers.linear import RMSNorm, Stream
from ..layers.mamba2 import Mamba2, Mamba2Shape
from ..layers.mlp import GatedMLP
from ..layers.moe import MoE, MoEShape
from ..layers.rotary import Rotary
from ..ops.moe.reference import Routing
from ..ops.rope.reference import RotarySpec
from .bamba import mamba2_rules, open_fields, read_attention, read_mamba2
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields, rotary

KINDS = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "full_attention": "attention",
    "attention": "attention",
}
"""What files of different ages call a layer."""


@dataclass(frozen=True)
class GraniteConfig:
    vocab_size: int
    hidden: int
    kinds: tuple[str, ...]
    eps: float
    attention: AttentionShape
    mamba: Mamba2Shape
    shared_inner: int
    moe: MoEShape | None
    rotary: RotarySpec | None
    embed_scale: float
    residual_scale: float
    logits_scale: float
    tied: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> GraniteConfig:
    fields = open_fields(values)
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-6)
    fields.only("hidden_act", "silu")
    fields.only("normalization_function", "rmsnorm")
    shared_inner = fields.integer("shared_intermediate_size", default=1024)
    turning = rotary(fields, theta=10_000.0)
    config = GraniteConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        kinds=_kinds(fields),
        eps=eps,
        attention=replace(
            read_attention(fields, hidden), scale=fields.number("attention_multiplier", default=1.0)
        ),
        mamba=read_mamba2(fields, hidden, eps),
        shared_inner=shared_inner,
        moe=_moe(fields, hidden, shared_inner),
        rotary=turning if fields.only("position_embedding_type", None, "nope", "rope") == "rope" else None,
        embed_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        logits_scale=1.0 / fields.number("logits_scaling", default=1.0),
        tied=fields.flag("tie_word_embeddings", default=False),
        max_positions=fields.integer("max_position_embeddings", default=2048),
    )
    fields.ignore("init_method", "output_router_logits", "router_aux_loss_coef")
    fields.finish()
    return config


def _kinds(fields: Fields) -> tuple[str, ...]:
    layers = fields.integer("num_hidden_layers")
    for name in ("layer_types", "layers_block_type"):
        if name in fields:
            fields.ignore("layer_types", "layers_block_type")
            return tuple(KINDS[kind] for kind in fields.items(name, tuple(KINDS), length=layers))
    fields.ignore("layer_types", "layers_block_type")
    return ("mamba",) * layers


def _moe(fields: Fields, hidden: int, shared_inner: int) -> MoEShape | None:
    experts = fields.integer("num_local_experts", default=8, least=0)
    chosen = fields.integer("num_experts_per_tok", default=2, least=0)
    inner = fields.integer("intermediate_size")
    return MoEShape(hidden, inner, Routing(experts, chosen), shared_inner=shared_inner) if experts else None


class ScaledBlock(Block):
    """What mixer and feed-forward network add to the residual stream is multiplied before."""

    def __init__(
        self, scale: float, mixer_norm: RMSNorm, mixer: nn.Module, mlp_norm: RMSNorm, mlp: nn.Module
    ) -> None:
        super().__init__(mixer_norm, mixer, mlp_norm, mlp)
        self.scale = scale

    def forward(self, stream: Stream, batch: Batch) -> Stream:
        x, normed = self.mixer_norm.of_stream(stream)
        x, normed = self.mlp_norm.of_stream(Stream(x, self.mixer(normed, batch) * self.scale))
        return Stream(x, self.mlp(normed) * self.scale)


def facts(config: GraniteConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="mamba" in config.kinds)


def build_model(build: Build, config: GraniteConfig) -> CausalLM:
    positions = None
    if config.rotary is not None:
        positions = Rotary(config.rotary, config.attention.head_dim, build.max_positions)

    def mixer(name: str, kind: str) -> nn.Module:
        if kind == "attention":
            return Attention(build, name, config.attention, positions)
        return Mamba2(build, name, config.mamba)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def mlp() -> nn.Module:
        if config.moe is None:
            return GatedMLP(build, config.hidden, config.shared_inner)
        return MoE(build, config.moe)

    blocks = [
        ScaledBlock(config.residual_scale, norm(), mixer(f"blocks.{i}", kind), norm(), mlp())
        for i, kind in enumerate(config.kinds)
    ]
    return CausalLM(
        build,
        facts(config),
        config.hidden,
        blocks,
        norm(),
        tied=config.tied,
        embed_scale=config.embed_scale,
        logits_scale=config.logits_scale,
    )


def rules(config: GraniteConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    shared = r"blocks.\1.mlp." if config.moe is None else r"blocks.\1.mlp.shared."
    return (
        (r"lm_head\.(.*)", None if config.tied else r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.norm\.(.*)", r"norm.\1"),
        (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"post_attention_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (layer + r"shared_mlp\.input_linear\.(.*)", shared + r"gate_up_proj.\2"),
        (layer + r"shared_mlp\.output_linear\.(.*)", shared + r"down_proj.\2"),
        (layer + r"block_sparse_moe\.router\.layer\.weight", r"blocks.\1.mlp.router.weight"),
        (layer + r"block_sparse_moe\.input_linear\.(.*)", r"blocks.\1.mlp.experts.up_proj.\2"),
        (layer + r"block_sparse_moe\.output_linear\.(.*)", r"blocks.\1.mlp.experts.down_proj.\2"),
        (layer + r"self_attn\.(.*)", r"blocks.\1.mixer.\2"),
        *mamba2_rules(layer + r"mamba\.", r"blocks.\1.mixer."),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
