"""Linear attention with fixed decays beside softmax attention: equal to transformers, and to itself in company."""

from __future__ import annotations

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
from holdfast.models import minimax

BASE: dict[str, Any] = dict(
    hidden_size=48,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_local_experts=8,
    num_experts_per_tok=3,
    block_size=16,
    max_position_embeddings=1024,
)
FACTORS: dict[str, Any] = dict(
    full_attn_alpha_factor=1.3,
    full_attn_beta_factor=0.8,
    linear_attn_alpha_factor=0.9,
    linear_attn_beta_factor=1.2,
    mlp_alpha_factor=1.1,
    mlp_beta_factor=0.7,
)
KINDS = {"l": "linear_attention", "a": "full_attention"}


def tiny(letters: str, **options: Any) -> Tiny:
    own = dict(num_hidden_layers=len(letters), layer_types=[KINDS[letter] for letter in letters])
    return Tiny("MiniMaxForCausalLM", BASE | own | options)


MODELS = {
    "minimax": tiny("lla", **FACTORS),
    "minimax-tied": tiny("al", tie_word_embeddings=True),
    "minimax-recurrent": tiny("ll", **FACTORS),
    "minimax-attention": tiny("aa", **FACTORS),
    "minimax-odd": tiny(
        "la",
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=10,
        num_local_experts=5,
        num_experts_per_tok=5,
        **FACTORS,
    ),
}
FAST = [("minimax", "all-at-once")]

BF16_WEIGHTS_KL = 1e-2
"""Of any position, where every expert is asked. The worst measured is 3e-3."""

oracle_of = oracles(MODELS)


class TestServed(Served):
    models, families, every_day = MODELS, ("minimax",), FAST


def test_bfloat16_weights(tmp_path: Path) -> None:
    asking_all = replace(MODELS["minimax"], options={**MODELS["minimax"].options, "num_experts_per_tok": 8})
    assert worst_kl_in_bfloat16(asking_all, tmp_path) < BF16_WEIGHTS_KL


# --- configs -----------------------------------------------------------------------------------------------

HUB: dict[str, Any] = {
    "architectures": ["MiniMaxForCausalLM"],
    "attention_dropout": 0.0,
    "block_size": 256,
    "full_attn_alpha_factor": 3.5565588200778455,
    "full_attn_beta_factor": 1.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_attn_alpha_factor": 3.5565588200778455,
    "linear_attn_beta_factor": 1.0,
    "max_position_embeddings": 10240000,
    "mlp_alpha_factor": 3.5565588200778455,
    "mlp_beta_factor": 1.0,
    "model_type": "minimax",
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 200064,
}


def test_a_config_as_the_hub_has_it() -> None:
    config = minimax.parse(HUB)
    assert config.kinds == ("linear_attention",) * 3 + ("full_attention",) and config.rotary.theta == 1e7
    assert config.weights["experts"] == minimax.Weights(3.5565588200778455, 1.0)
    assert minimax.parse({k: v for k, v in HUB.items() if k != "layer_types"}).kinds[0] == "full_attention"


def test_the_plan_counts_published_weights(tmp_path: Path) -> None:
    assert_weights_are_counted(tmp_path, HUB)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"sliding_window": 64}, "sliding_window=64 is not implemented"),
    ({"layer_types": ["conv"] * 4}, "layer_types holds 'conv'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not implemented"),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSALS, ids=[r[1] for r in REFUSALS])
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        minimax.parse(HUB | change)
    assert complaint in str(refused.value)
