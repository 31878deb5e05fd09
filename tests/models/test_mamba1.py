"""Mamba-1, alone and beside attention: equal to transformers, and to itself in any company."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
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
from holdfast.models import falcon_mamba, jamba, mamba

PURE: dict[str, Any] = dict(hidden_size=48, state_size=8, time_step_rank=6)
HYBRID: dict[str, Any] = dict(
    hidden_size=48,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_experts=4,
    num_experts_per_tok=2,
    mamba_d_state=8,
    mamba_dt_rank=6,
    max_position_embeddings=1024,
)


def pure(count: int = 2, **options: Any) -> Tiny:
    return Tiny("MambaForCausalLM", PURE | dict(num_hidden_layers=count) | options)


def falcon(count: int = 2, **options: Any) -> Tiny:
    return Tiny("FalconMambaForCausalLM", PURE | dict(num_hidden_layers=count) | options)


def hybrid(count: int, *attention: int, **options: Any) -> Tiny:
    """attention: which one in how many; experts in every other layer"""
    offset, period = attention
    own = dict(num_hidden_layers=count, attn_layer_offset=offset, attn_layer_period=period)
    return Tiny("JambaForCausalLM", HYBRID | own | options)


ODD = dict(hidden_size=45, state_size=7, time_step_rank=5, conv_kernel=3, expand=3)
BIASED = dict(use_bias=True, use_conv_bias=False)
MODELS = {
    "mamba": pure(),
    "mamba-untied": pure(tie_word_embeddings=False, residual_in_fp32=False),
    "mamba-biased": pure(**BIASED),
    "mamba-one-layer": pure(1, time_step_rank="auto"),
    "mamba-odd": pure(**ODD),
    "falcon_mamba": falcon(),
    "falcon_mamba-untied": falcon(tie_word_embeddings=False, mixer_rms_eps=1e-3),
    "falcon_mamba-biased": falcon(**BIASED),
    "falcon_mamba-one-layer": falcon(1),
    "falcon_mamba-odd": falcon(**ODD),
    "jamba": hybrid(3, 1, 3),
    "jamba-dense": hybrid(2, 1, 2, num_experts=1, tie_word_embeddings=True),
    "jamba-biased": hybrid(2, 0, 2, mamba_proj_bias=True, mamba_conv_bias=False, expert_layer_offset=0),
    "jamba-recurrent": hybrid(2, 2, 3),
    "jamba-attention": hybrid(2, 0, 1),
    "jamba-odd": hybrid(
        2,
        1,
        2,
        num_attention_heads=3,
        num_key_value_heads=1,
        num_experts=5,
        num_experts_per_tok=5,
        mamba_expand=3,
        mamba_d_state=7,
        mamba_d_conv=3,
        mamba_dt_rank="auto",
    ),
}
FAMILIES = ("mamba", "falcon_mamba", "jamba")
FAST = [*product(FAMILIES, ("all-at-once",)), ("mamba", "windows-of-5")]
"""The first folds every token, as these models do if nothing is speculated, the second every 16."""

BF16_WEIGHTS_KL = 3e-2
"""Of any position, where every expert is asked. The worst measured is 1.5e-2."""

oracle_of = oracles(MODELS)


class TestServed(Served):
    models, families, every_day = MODELS, FAMILIES, FAST


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_weights(tmp_path: Path, name: str) -> None:
    options = MODELS[name].options
    asking_all = {key: options["num_experts"] for key in ("num_experts_per_tok",) if key in options}
    tiny = replace(MODELS[name], options=options | asking_all)
    assert worst_kl_in_bfloat16(tiny, tmp_path) < BF16_WEIGHTS_KL


# --- configs -----------------------------------------------------------------------------------------------

HUB_MAMBA: dict[str, Any] = {
    "architectures": ["MambaForCausalLM"],
    "bos_token_id": 0,
    "conv_kernel": 4,
    "d_inner": 1536,
    "d_model": 768,
    "eos_token_id": 0,
    "expand": 2,
    "fused_add_norm": True,
    "hidden_act": "silu",
    "hidden_size": 768,
    "initializer_range": 0.1,
    "intermediate_size": 1536,
    "layer_norm_epsilon": 1e-05,
    "model_type": "mamba",
    "n_layer": 24,
    "num_hidden_layers": 24,
    "pad_token_id": 0,
    "pad_vocab_size_multiple": 8,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "rms_norm": True,
    "ssm_cfg": {},
    "state_size": 16,
    "time_step_floor": 0.0001,
    "time_step_init_scheme": "random",
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "time_step_rank": 48,
    "time_step_scale": 1.0,
    "torch_dtype": "float32",
    "use_bias": False,
    "use_cache": True,
    "use_conv_bias": True,
    "vocab_size": 50280,
}
HUB_FALCON: dict[str, Any] = {
    "architectures": ["FalconMambaForCausalLM"],
    "conv_kernel": 4,
    "expand": 16,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.1,
    "intermediate_size": 8192,
    "layer_norm_epsilon": 1e-05,
    "mixer_rms_eps": 1e-06,
    "model_type": "falcon_mamba",
    "num_hidden_layers": 64,
    "rescale_prenorm_residual": False,
    "residual_in_fp32": True,
    "state_size": 16,
    "tie_word_embeddings": False,
    "time_step_rank": 256,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_conv_bias": True,
    "use_falcon_mambapy": False,
    "vocab_size": 65024,
}
HUB_JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "attention_dropout": 0.0,
    "attn_layer_offset": 4,
    "attn_layer_period": 8,
    "expert_layer_offset": 1,
    "expert_layer_period": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 16,
    "mamba_dt_rank": 256,
    "mamba_expand": 2,
    "mamba_inner_layernorms": True,
    "mamba_proj_bias": False,
    "max_position_embeddings": 262144,
    "model_type": "jamba",
    "num_attention_heads": 32,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "num_logits_to_keep": 1,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_mamba_kernels": True,
    "vocab_size": 65536,
}


@pytest.mark.parametrize(
    ("options", "grid"),
    [
        ({}, 1),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}, 16),
        ({"fold_every": 8}, 8),
    ],
)
def test_every_token_is_folded_unless_something_is_speculated(
    tmp_path: Path, options: dict[str, Any], grid: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HUB_JAMBA))
    config = EngineConfig(memory="400GiB", dtype="bfloat16", device="cuda", **options)
    assert Blueprint(tmp_path, config).capacity.limits.fold_every == grid


def test_configs_as_the_hub_has_them() -> None:
    first = mamba.parse(HUB_MAMBA)
    assert (first.mixer.inner, first.mixer.dt_rank, first.mixer.norm, first.tied) == (1536, 48, None, True)
    assert mamba.parse(HUB_MAMBA | {"time_step_rank": "auto"}) == first
    wide = falcon_mamba.parse(HUB_FALCON)
    assert (wide.mixer.inner, wide.mixer.norm, wide.tied) == (8192, "plain", False)
    mixed = jamba.parse(HUB_JAMBA)
    assert mixed.attention_layers == {4, 12} and mixed.expert_layers == set(range(1, 16, 2))
    assert (mixed.mamba.inner, mixed.mamba.norm, mixed.moe.routing.normalised) == (8192, "weighted", False)
    assert jamba.parse(HUB_JAMBA | {"num_experts": 1}).expert_layers == set()


@pytest.mark.parametrize("config", [HUB_MAMBA, HUB_FALCON, HUB_JAMBA], ids=lambda c: c["model_type"])
def test_the_plan_counts_published_weights(tmp_path: Path, config: dict[str, Any]) -> None:
    assert_weights_are_counted(tmp_path, config)


REFUSALS: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (mamba.parse, HUB_MAMBA, {"rms_norm": False}, "rms_norm=False is not implemented"),
    (mamba.parse, HUB_MAMBA, {"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg={'layer': 'Mamba2'} is not"),
    (mamba.parse, HUB_MAMBA, {"mixer_rms_eps": 1e-6}, "unknown fields mixer_rms_eps"),
    (falcon_mamba.parse, HUB_FALCON, {"hidden_act": "gelu"}, "hidden_act='gelu' is not implemented"),
    (jamba.parse, HUB_JAMBA, {"attn_layer_offset": 8}, "attn_layer_offset=8 must be smaller than"),
    (jamba.parse, HUB_JAMBA, {"sliding_window": 64}, "sliding_window=64 is not implemented"),
    (jamba.parse, HUB_JAMBA, {"mamba_inner_layernorms": False}, "mamba_inner_layernorms=False is not"),
]


@pytest.mark.parametrize(("parse", "config", "change", "complaint"), REFUSALS, ids=[r[3] for r in REFUSALS])
def test_what_is_not_implemented_is_refused_by_name(
    parse: Any, config: dict[str, Any], change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(config | change)
    assert complaint in str(refused.value)
