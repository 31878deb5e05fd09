"""Qwen3 with experts (Alibaba): Qwen3's attention, and a router before many small feed-forward networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..config import ModelFacts
from ..layers.attention import Attention
from ..layers.batch import Build
from ..layers.linear import RMSNorm
from ..layers.mlp import GatedMLP
from ..layers.moe import MoE, MoEShape
from ..layers.rotary import Rotary
from ..ops.moe.reference import Routing
from . import llama, qwen3
from .base import Architecture, Block, CausalLM, Rules
from .fields import Fields
from .llama import LlamaConfig


@dataclass(frozen=True)
class Qwen3MoeConfig:
    base: LlamaConfig
    moe: MoEShape
    dense_layers: frozenset[int]


def parse(values: Mapping[str, Any]) -> Qwen3MoeConfig:
    fields = Fields(values, "config.json")
    moe, dense_layers = read_experts(fields, normalised=False)
    head_dim = moe.hidden // fields.integer("num_attention_heads")
    return Qwen3MoeConfig(qwen3.read(fields, head_dim=head_dim), moe, dense_layers)


def read_experts(
    fields: Fields, *, normalised: bool, shared: bool = False
) -> tuple[MoEShape, frozenset[int]]:
    """The experts, and the layers that have none.

    normalised  the weights of a token's experts add up to one, unless norm_topk_prob says otherwise
    shared      one more expert sees every token, through a gate
    """
    moe = MoEShape(
        hidden=fields.integer("hidden_size"),
        inner=fields.integer("moe_intermediate_size"),
        routing=Routing(
            experts=fields.integer("num_experts", "num_local_experts"),
            chosen=fields.integer("num_experts_per_tok"),
            normalised=fields.flag("norm_topk_prob", default=normalised),
        ),
        shared_inner=fields.integer("shared_expert_intermediate_size") if shared else None,
        shared_gated=shared,
    )
    layers = range(fields.integer("num_hidden_layers"))
    step = fields.integer("decoder_sparse_step", default=1)
    named = fields.items("mlp_only_layers") if "mlp_only_layers" in fields else ()
    fields.ignore("mlp_only_layers", "output_router_logits", "router_aux_loss_coef")
    return moe, frozenset(layer for layer in layers if layer in named or (layer + 1) % step)


def facts(config: Qwen3MoeConfig) -> ModelFacts:
    return llama.facts(config.base)


def build_model(build: Build, config: Qwen3MoeConfig) -> CausalLM:
    base = config.base
    positions = Rotary(base.rotary, base.attention.head_dim, build.max_positions)

    def norm() -> RMSNorm:
        return RMSNorm(build, base.hidden, base.eps)

    def mlp(layer: int) -> nn.Module:
        if layer in config.dense_layers:
            return GatedMLP(build, base.hidden, base.inner)
        return MoE(build, config.moe)

    blocks = [
        Block(norm(), Attention(build, f"blocks.{i}", base.attention, positions), norm(), mlp(i))
        for i in range(base.layers)
    ]
    return CausalLM(build, facts(config), base.hidden, blocks, norm(), tied=base.tied)


def rules(config: Qwen3MoeConfig) -> Rules:
    return (*expert_rules(r"model\.layers\.(\d+)\."), *llama.rules(config.base))


def expert_rules(layer: str) -> Rules:
    """A layer's experts in one tensor per projection; others, numbered, have their places already."""
    return (
        (layer + r"mlp\.gate\.weight", r"blocks.\1.mlp.router.weight"),
        (layer + r"mlp\.experts\.gate_up_proj", r"blocks.\1.mlp.experts.up_proj.weight"),
        (layer + r"mlp\.experts\.down_proj", r"blocks.\1.mlp.experts.down_proj.weight"),
        (layer + r"mlp\.shared_expert\.(.*)", r"blocks.\1.mlp.shared.\2"),
        (layer + r"mlp\.shared_expert_gate\.(.*)", r"blocks.\1.mlp.shared_gate.\2"),
    )


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules)
