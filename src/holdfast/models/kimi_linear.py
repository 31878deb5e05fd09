"""Kimi Linear (Moonshot AI): delta attention gated by channel, latent attention without positions; mostly experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ConfigError, ModelFacts
from ..layers.batch import Build
from ..layers.kda import KDA, KDAShape
from ..layers.latent_attention import LatentAttention, LatentShape
from ..layers.linear import RMSNorm
from ..layers.mlp import GatedMLP
from ..layers.moe import MoE, MoEShape
from ..ops.moe.reference import Routing
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields

KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class KimiLinearConfig:
    vocab_size: int
    hidden: int
    inner: int
    eps: float
    kinds: tuple[str, ...]
    dense_layers: frozenset[int]
    kda: KDAShape
    attention: LatentShape
    moe: MoEShape
    max_positions: int


def parse(values: Mapping[str, Any]) -> KimiLinearConfig:
    fields = Fields(values, "config.json")
    hidden, eps = fields.integer("hidden_size"), fields.number("rms_norm_eps", default=1e-5)
    layers, linear = fields.integer("num_hidden_layers"), fields.group("linear_attn_config")
    config = KimiLinearConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        eps=eps,
        kinds=_kinds(fields, linear, layers),
        dense_layers=_dense_layers(fields, layers),
        kda=KDAShape(
            hidden=hidden,
            heads=linear.integer("num_heads", default=fields.integer("linear_num_heads", default=32)),
            head_dim=linear.integer("head_dim", default=fields.integer("linear_head_dim", default=128)),
            conv_width=linear.integer(
                "short_conv_kernel_size", default=fields.integer("linear_conv_kernel_dim", default=4)
            ),
            eps=eps,
        ),
        attention=_attention(fields, hidden),
        moe=_moe(fields, hidden),
        max_positions=fields.integer("model_max_length", "max_position_embeddings", default=1_048_576),
    )
    fields.only("hidden_act", "silu")
    fields.only("mla_use_nope", True)
    fields.only("tie_word_embeddings", False)
    fields.ignore("head_dim", "qk_head_dim", "rope_theta", "rope_scaling", "rope_parameters")
    fields.ignore("pretraining_tp", "num_nextn_predict_layers", "output_router_logits")
    linear.finish()
    fields.finish()
    return config


def _kinds(fields: Fields, linear: Fields, layers: int) -> tuple[str, ...]:
    fields.ignore("layer_types")
    linear.ignore("kda_layers", "full_attn_layers")
    if "layer_types" in fields:
        return fields.items("layer_types", KINDS, length=layers)
    if "full_attn_layers" not in linear:
        return tuple(KINDS[i > 0 and i % 4 == 0] for i in range(layers))
    attention, others = set(linear.items("full_attn_layers")), set(linear.items("kda_layers"))
    if attention & others or attention | others != set(range(1, layers + 1)):
        raise ConfigError(
            f"config.json: linear_attn_config: full_attn_layers and kda_layers must name each of {layers} layers "
            "once, the first being 1"
        )
    return tuple(KINDS[i + 1 in attention] for i in range(layers))


def _dense_layers(fields: Fields, layers: int) -> frozenset[int]:
    first = fields.integer("first_k_dense_replace", default=1, least=0)
    fields.only("moe_layer_freq", 1)
    fields.ignore("mlp_layer_types")
    if "mlp_layer_types" not in fields:
        return frozenset(range(min(first, layers)))
    kinds = fields.items("mlp_layer_types", ("dense", "sparse"), length=layers)
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


def _attention(fields: Fields, hidden: int) -> LatentShape:
    heads = fields.integer("num_attention_heads")
    if fields.integer("num_key_value_heads", default=heads) != heads:
        raise ConfigError(
            f"config.json: num_key_value_heads must be num_attention_heads={heads} in latent attention"
        )
    fields.ignore("q_lora_rank")
    return LatentShape(
        hidden=hidden,
        heads=heads,
        latent=fields.integer("kv_lora_rank", default=512),
        own_dim=fields.integer("qk_nope_head_dim", default=128),
        shared_dim=fields.integer("qk_rope_head_dim", default=64),
        value_dim=fields.integer("v_head_dim", default=128),
        query_rank=fields.integer("q_lora_rank") if "q_lora_rank" in fields else None,
        bias=fields.flag("attention_bias", default=False),
    )


def _moe(fields: Fields, hidden: int) -> MoEShape:
    fields.only("moe_router_activation_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    fields.only("use_grouped_topk", True)
    inner = fields.integer("moe_intermediate_size")
    return MoEShape(
        hidden=hidden,
        inner=inner,
        routing=Routing(
            experts=fields.integer("num_experts", "num_local_experts"),
            chosen=fields.integer("num_experts_per_token", "num_experts_per_tok"),
            score="sigmoid",
            normalised=fields.flag("moe_renormalize", "norm_topk_prob", default=True),
            eps=1e-20,
            scale=fields.number("routed_scaling_factor", default=1.0),
            groups=fields.integer("num_expert_group", "n_group", default=1),
            chosen_groups=fields.integer("topk_group", default=1),
        ),
        correction=True,
        float32_router=True,
        shared_inner=inner * fields.integer("num_shared_experts", "n_shared_experts", default=1),
    )


def facts(config: KimiLinearConfig) -> ModelFacts:
    return ModelFacts(config.vocab_size, config.max_positions, recurrent="linear_attention" in config.kinds)


def build_model(build: Build, config: KimiLinearConfig) -> CausalLM:
    def mixer(name: str, kind: str) -> nn.Module:
        if kind == "full_attention":
            return LatentAttention(build, name, config.attention)
        return KDA(build, name, config.kda)

    def norm() -> RMSNorm:
        return RMSNorm(build, config.hidden, config.eps)

    def mlp(layer: int) -> nn.Module:
        if layer in config.dense_layers:
            return GatedMLP(build, config.hidden, config.inner)
        return MoE(build, config.moe)

    blocks = [
        Block(norm(), mixer(f"blocks.{i}", kind), norm(), mlp(i)) for i, kind in enumerate(config.kinds)
    ]
    return CausalLM(build, facts(config), config.hidden, blocks, norm(), tied=False)


def rules(config: KimiLinearConfig) -> Rules:
    layer = r"model\.layers\.(\d+)\."
    mixer, mlp = layer + r"self_attn\.", layer + r"(?:block_sparse_moe|mlp)\."
    expert, experts = mlp + r"experts\.(\d+)\.", r"blocks.\1.mlp.experts."
    return (
        (r"lm_head\.(.*)", r"head.\1"),
        (r"model\.embed_tokens\.(.*)", r"embed.\1"),
        (r"model\.norm\.(.*)", r"norm.\1"),
        (layer + r"input_layernorm\.(.*)", r"blocks.\1.mixer_norm.\2"),
        (layer + r"post_attention_layernorm\.(.*)", r"blocks.\1.mlp_norm.\2"),
        (mixer + r"([qkv])_conv1d\.weight", r"blocks.\1.mixer.conv_weights.\2"),
        (mixer + r"A_log", r"blocks.\1.mixer.a_log"),
        (mixer + r"o_norm\.weight", r"blocks.\1.mixer.norm_weight"),
        (mixer + r"kv_a_proj_with_mqa\.(.*)", r"blocks.\1.mixer.kv_a_proj.\2"),
        (mixer + r"(kv|q)_a_layernorm\.(.*)", r"blocks.\1.mixer.\2_norm.\3"),
        (mixer + r"kv_b_proj\.weight", r"blocks.\1.mixer.kv_b_weight"),
        (mixer + r"(.*)", r"blocks.\1.mixer.\2"),
        (mlp + r"gate\.weight", r"blocks.\1.mlp.router.weight"),
        (mlp + r"gate\.e_score_correction_bias", r"blocks.\1.mlp.router.correction"),
        (expert + r"w1\.(.*)", experts + r"\2.gate_proj.\3"),
        (expert + r"w3\.(.*)", experts + r"\2.up_proj.\3"),
        (expert + r"w2\.(.*)", experts + r"\2.down_proj.\3"),
        (mlp + r"shared_experts\.(.*)", r"blocks.\1.mlp.shared.\2"),
        (mlp + r"(.*)", r"blocks.\1.mlp.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
