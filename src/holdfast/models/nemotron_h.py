"""Nemotron-H and Nemotron 3 (NVIDIA): a block is a Mamba-2 mixer, attention without positions, an MLP, or experts.

A time step below time_step_min stays as it is: that field is for training. (In transformers it is raised to that in
prefill and left alone in decode.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ConfigError, ModelFacts
from ..layers.attention import Attention, AttentionShape
from ..layers.batch import Batch, Build
from ..layers.linear import RMSNorm, Stream
from ..layers.mamba2 import Mamba2, Mamba2Shape
from ..layers.mlp import MLP
from ..layers.moe import MoE, MoEShape
from ..ops.moe.reference import Routing
from .bamba import mamba2_rules
from .base import Architecture, CausalLM, MixerBlock, Rules
from .fields import Fields

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""A pattern has one for each block."""
KINDS = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "full_attention": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}
"""What files of different ages call a block."""


@dataclass(frozen=True)
class NemotronHConfig:
    vocab_size: int
    hidden: int
    inner: int
    kinds: tuple[str, ...]
    eps: float
    attention: AttentionShape
    mamba: Mamba2Shape
    moe: MoEShape | None
    mlp_bias: bool
    residual_in_fp32: bool
    max_positions: int


def parse(values: Mapping[str, Any]) -> NemotronHConfig:
    fields = Fields(values, "config.json")
    hidden = fields.integer("hidden_size")
    eps = fields.number("layer_norm_epsilon", "norm_eps", "rms_norm_eps", default=1e-5)
    kinds, bias = _kinds(fields), fields.flag("mlp_bias", default=False)
    fields.only("mlp_hidden_act", "relu2")
    fields.only("mamba_hidden_act", "silu")
    fields.only("sliding_window", None)
    fields.only("mamba_proj_bias", False)
    fields.only("tie_word_embeddings", False)
    config = NemotronHConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size", default=21504),
        kinds=kinds,
        eps=eps,
        attention=_attention(fields, hidden),
        mamba=_mamba(fields, hidden, eps),
        moe=_moe(fields, hidden, bias) if "moe" in kinds else None,
        mlp_bias=bias,
        residual_in_fp32=fields.flag("residual_in_fp32", default=False),
        max_positions=fields.integer("max_position_embeddings", default=4096),
    )
    fields.ignore(*MOE_FIELDS)
    fields.ignore("expand", "chunk_size", "hidden_dropout", "rescale_prenorm_residual", "num_logits_to_keep")
    fields.ignore("time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "use_mamba_kernels")
    fields.ignore("mamba_ssm_cache_dtype", "rope_theta", "partial_rotary_factor", "rope_parameters")
    fields.ignore("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    fields.finish()
    return config


def _kinds(fields: Fields) -> tuple[str, ...]:
    kinds = _listed(fields) or _spelt(fields.text("hybrid_override_pattern"))
    fields.ignore("hybrid_override_pattern", "layers_block_type", "layer_types")
    layers = fields.integer("num_hidden_layers", default=len(kinds))
    if layers != len(kinds):
        raise ConfigError(f"config.json: num_hidden_layers={layers}, but {len(kinds)} blocks are named")
    return kinds


def _listed(fields: Fields) -> tuple[str, ...]:
    for name in ("layers_block_type", "layer_types"):
        if name in fields:
            return tuple(KINDS[kind] for kind in fields.items(name, tuple(KINDS)))
    return ()


def _spelt(pattern: str) -> tuple[str, ...]:
    if unknown := set(pattern) - set(LETTERS):
        raise ConfigError(
            f"config.json: hybrid_override_pattern has {', '.join(sorted(unknown))}; blocks are {' '.join(LETTERS)}"
        )
    return tuple(LETTERS[letter] for letter in pattern)


def _attention(fields: Fields, hidden: int) -> AttentionShape:
    fields.only("attention_bias", False)
    heads = fields.integer("num_attention_heads")
    return AttentionShape(
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", default=heads),
        head_dim=fields.integer("head_dim", "attention_head_dim", default=128),
        eps=None,
    )


def _mamba(fields: Fields, hidden: int, eps: float) -> Mamba2Shape:
    groups = fields.integer("n_groups", "mamba_n_groups", default=8)
    return Mamba2Shape(
        hidden=hidden,
        heads=fields.integer("mamba_num_heads", default=128),
        head_dim=fields.integer("mamba_head_dim", default=64),
        groups=groups,
        state=fields.integer("ssm_state_size", default=128),
        conv_width=fields.integer("conv_kernel", "mamba_d_conv", default=4),
        eps=eps,
        bias=fields.flag("use_bias", default=False),
        conv_bias=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
        norm_groups=groups,
        dt_limits=fields.interval("time_step_limit", default=(0.0, math.inf)),
    )


MOE_FIELDS = (
    "n_routed_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "moe_shared_expert_overlap",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "output_router_logits",
    "router_aux_loss_coef",
)
"""Without effect where no block has experts."""


def _moe(fields: Fields, hidden: int, bias: bool) -> MoEShape:
    fields.only("n_shared_experts", 1)
    return MoEShape(
        hidden=hidden,
        inner=fields.integer("moe_intermediate_size"),
        routing=Routing(
            experts=fields.integer("n_routed_experts"),
            chosen=fields.integer("num_experts_per_tok"),
            score="sigmoid",
            normalised=fields.flag("norm_topk_prob", default=True),
            eps=1e-20,
            scale=fields.number("routed_scaling_factor", default=1.0),
            groups=fields.integer("n_group", default=1),
            chosen_groups=fields.integer("topk_group", default=1),
        ),
        gated=False,
        correction=True,
        float32_router=True,
        shared_inner=fields.integer("moe_shared_expert_intermediate_size"),
        latent=fields.integer("moe_latent_size") if "moe_latent_size" in fields else None,
        bias=bias,
    )


class FeedForwardBlock(MixerBlock):
    """x + mixer(norm(x)), of a mixer that sees one token at a time."""

    def forward(self, stream: Stream, batch: Batch) -> Stream:
        x, normed = self.mixer_norm.of_stream(stream)
        return Stream(x, self.mixer(normed))


def facts(config: NemotronHConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="mamba" in config.kinds)


def build_model(build: Build, config: NemotronHConfig) -> CausalLM:
    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def block(name: str, kind: str) -> nn.Module:
        if kind == "mamba":
            return MixerBlock(norm(), Mamba2(build, name, config.mamba))
        if kind == "attention":
            return MixerBlock(norm(), Attention(build, name, config.attention, None))
        if kind == "mlp":
            return FeedForwardBlock(norm(), MLP(build, config.hidden, config.inner, bias=config.mlp_bias))
        assert config.moe is not None
        return FeedForwardBlock(norm(), MoE(build, config.moe))

    blocks = [block(f"blocks.{i}", kind) for i, kind in enumerate(config.kinds)]
    return CausalLM(
        build,
        facts(config),
        config.hidden,
        blocks,
        norm(),
        tied=False,
        residual_in_fp32=config.residual_in_fp32,
    )


def rules(config: NemotronHConfig) -> Rules:
    model = r"(?:backbone|model)\."
    layer = model + r"layers\.(\d+)\."
    return (
        (r"mtp\..*", None),
        (r"lm_head\.(.*)", r"head.\1"),
        (model + r"embeddings?\.(.*)", r"embed.\1"),
        (model + r"norm_f\.(.*)", r"norm.\1"),
        (layer + r"norm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"mixer\.gate\.weight", r"blocks.\1.mixer.router.weight"),
        (layer + r"mixer\.gate\.e_score_correction_bias", r"blocks.\1.mixer.router.correction"),
        (layer + r"mixer\.shared_experts\.(.*)", r"blocks.\1.mixer.shared.\2"),
        (layer + r"mixer\.fc1_latent_proj\.(.*)", r"blocks.\1.mixer.into_latent.\2"),
        (layer + r"mixer\.fc2_latent_proj\.(.*)", r"blocks.\1.mixer.out_of_latent.\2"),
        *mamba2_rules(layer + r"mixer\.", r"blocks.\1.mixer."),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
