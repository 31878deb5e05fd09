"""Delta attention gated by channel beside latent attention: equal to transformers, and to itself in any company."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.conformance import Tiny, oracles, worst_kl_in_bfloat16
from tests.models.zoo import (
    Served,
    assert_weights_are_counted,
)

from holdfast import ConfigError
from holdfast.blueprint import Blueprint
from holdfast.config import EngineConfig
from holdfast.models import kimi_linear

BASE: dict[str, Any] = dict(
    pad_token_id=0,
    hidden_size=48,
    intermediate_size=64,
    moe_intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=4,
    kv_lora_rank=20,
    qk_rope_head_dim=6,
    qk_nope_head_dim=10,
    v_head_dim=12,
    num_local_experts=8,
    num_experts_per_tok=3,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=1.5,
    linear_num_heads=3,
    linear_head_dim=16,
    max_position_embeddings=1024,
)
KINDS = {"d": "linear_attention", "a": "full_attention"}


def kimi(letters: str, **options: Any) -> Tiny:
    own = dict(num_hidden_layers=len(letters), layer_types=[KINDS[letter] for letter in letters])
    return Tiny("KimiLinearForCausalLM", BASE | own | options)


MODELS = {
    "kimi_linear": kimi("dda"),
    "kimi_linear-dense": kimi("da", mlp_layer_types=["dense"] * 2),
    "kimi_linear-experts": kimi(
        "ad", mlp_layer_types=["sparse"] * 2, norm_topk_prob=False, n_shared_experts=2
    ),
    "kimi_linear-biased": kimi("da", attention_bias=True, q_lora_rank=14),
    "kimi_linear-recurrent": kimi("dd"),
    "kimi_linear-attention": kimi("aa", q_lora_rank=9),
    "kimi_linear-odd": kimi(
        "da",
        num_attention_heads=3,
        num_key_value_heads=3,
        linear_num_heads=5,
        linear_head_dim=7,
        linear_conv_kernel_dim=3,
        kv_lora_rank=11,
        qk_nope_head_dim=5,
        qk_rope_head_dim=3,
        v_head_dim=9,
        n_group=1,
        topk_group=1,
    ),
}
FAST = [("kimi_linear", "all-at-once"), ("kimi_linear-dense", "whole")]

BF16_WEIGHTS_KL = 2e-2
"""Of any position, where every expert is asked. The worst measured is 5e-3."""

oracle_of = oracles(MODELS)


class TestServed(Served):
    models, families, every_day = MODELS, ("kimi_linear",), FAST


def test_bfloat16_weights(tmp_path: Path) -> None:
    asking_all = dict(num_experts_per_tok=8, topk_group=4)
    tiny = replace(MODELS["kimi_linear"], options={**MODELS["kimi_linear"].options, **asking_all})
    assert worst_kl_in_bfloat16(tiny, tmp_path) < BF16_WEIGHTS_KL


# --- configs -----------------------------------------------------------------------------------------------

HUB: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "bos_token_id": 163584,
    "dtype": "bfloat16",
    "eos_token_id": 163586,
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 9],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 9,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": 163839,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_cache": True,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def test_a_config_as_the_hub_has_it() -> None:
    config = kimi_linear.parse(HUB)
    assert [i for i, kind in enumerate(config.kinds) if kind == "full_attention"] == [3, 7, 8]
    assert (config.kda.heads, config.kda.head_dim, config.attention.latent) == (32, 128, 512)
    assert config.dense_layers == {0} and config.moe.shared_inner == 1024 and config.moe.float32_router
    assert config.max_positions == 1 << 20


def test_the_plan_counts_published_weights(tmp_path: Path) -> None:
    assert_weights_are_counted(tmp_path, HUB, in_float32=("mlp.gate.weight",))


def test_pages_hold_latents_and_nothing_else(tmp_path: Path) -> None:
    """Of each attention layer 512 + 64 numbers a token, where its heads have 32 keys and values of 192 and 128."""
    (tmp_path / "config.json").write_text(json.dumps(HUB))
    config = EngineConfig(memory="400GiB", dtype="bfloat16", device="cuda", page_size=64)
    plan = Blueprint(tmp_path, config).capacity
    assert plan.parts.kv == (plan.limits.num_pages + 1) * 64 * 3 * (512 + 64) * 2


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"mla_use_nope": False}, "mla_use_nope=False is not implemented"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings=True is not implemented"),
    ({"num_key_value_heads": 8}, "num_key_value_heads must be num_attention_heads=32"),
    ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func='softmax' is not implemented"),
    (
        {"linear_attn_config": HUB["linear_attn_config"] | {"kda_layers": [1]}},
        "must name each of 9 layers once",
    ),
    (
        {"linear_attn_config": HUB["linear_attn_config"] | {"gate": 1}},
        "linear_attn_config: unknown fields gate",
    ),
    ({"num_hidden_layers": 4, "layer_types": ["conv"] * 4}, "layer_types holds 'conv'"),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSALS, ids=[r[1] for r in REFUSALS])
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        kimi_linear.parse(HUB | change)
    assert complaint in str(refused.value)
