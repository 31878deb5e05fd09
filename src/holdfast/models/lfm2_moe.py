"""LFM2 with experts (Liquid AI): LFM2's mixers; in all but the first layers experts instead of one gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..layers.moe import MoEShape
from ..ops.moe.reference import Routing
from . import lfm2
from .base import Architecture, Rules
from .fields import Fields, rotary
from .lfm2 import Lfm2Config, build_model, facts


def parse(values: Mapping[str, Any]) -> Lfm2Config:
    fields = Fields(values, "config.json")
    hidden, layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
    config = Lfm2Config(
        vocab_size=fields.integer("vocab_size"),
        hidden=hidden,
        inner=fields.integer("intermediate_size"),
        heads=fields.integer("num_attention_heads"),
        kv_heads=fields.integer("num_key_value_heads"),
        eps=fields.number("norm_eps", default=1e-5),
        conv_width=fields.integer("conv_L_cache", default=3),
        conv_bias=fields.flag("conv_bias", default=False),
        tied=fields.flag("tie_embedding", "tie_word_embeddings", default=True),
        rotary=rotary(fields, theta=1_000_000.0),
        max_positions=fields.integer("max_position_embeddings", default=128_000),
        kinds=lfm2.layer_kinds(fields, layers),
        moe=MoEShape(
            hidden=hidden,
            inner=fields.integer("moe_intermediate_size"),
            routing=Routing(
                experts=fields.integer("num_experts"),
                chosen=fields.integer("num_experts_per_tok"),
                score="sigmoid",
                normalised=fields.flag("norm_topk_prob", default=True),
                eps=1e-6,
                scale=fields.number("routed_scaling_factor", default=1.0),
            ),
            correction=fields.flag("use_expert_bias", default=True),
        ),
        dense_layers=fields.integer("num_dense_layers", default=2, least=0),
    )
    fields.ignore("output_router_logits", "router_aux_loss_coef")
    fields.finish()
    return config


def rules(config: Lfm2Config) -> Rules:
    layer = r"model\.layers\.(\d+)\.feed_forward\."
    expert = layer + r"experts\.(\d+)\."
    return (
        (layer + r"gate\.weight", r"blocks.\1.mlp.router.weight"),
        (layer + r"expert_bias", r"blocks.\1.mlp.router.correction"),
        (expert + r"w1\.(.*)", r"blocks.\1.mlp.experts.\2.gate_proj.\3"),
        (expert + r"w3\.(.*)", r"blocks.\1.mlp.experts.\2.up_proj.\3"),
        (expert + r"w2\.(.*)", r"blocks.\1.mlp.experts.\2.down_proj.\3"),
        *lfm2.rules(config),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
