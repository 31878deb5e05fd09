"""Llama and Qwen3, no recurrent state at all: equal to transformers, and to themselves in every company."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.conformance import (
    CONTEXT,
    MIXED,
    VARIANTS,
    OracleOf,
    Tiny,
    assert_equal_to_oracle,
    assert_state_matters,
    bits,
    oracles,
    prompts,
    serve,
    slow_but,
    worst_kl_in_bfloat16,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from holdfast import LLM, ConfigError
from holdfast.models import llama, qwen3
from holdfast.ops.rope.reference import rotary_table

BASE: dict[str, Any] = dict(
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=128,
)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
DEFAULT = dict(rope_type="default", rope_theta=10000.0)
LLAMA, QWEN3 = "LlamaForCausalLM", "Qwen3ForCausalLM"
MODELS = {
    "llama": Tiny(LLAMA, BASE),
    "llama-3": Tiny(LLAMA, BASE | dict(rope_parameters=LLAMA3)),
    "llama-linear": Tiny(LLAMA, BASE | dict(rope_parameters=LINEAR, num_key_value_heads=4)),
    "llama-biased": Tiny(LLAMA, BASE | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "llama-odd": Tiny(LLAMA, BASE | dict(num_attention_heads=3, num_key_value_heads=1, head_dim=10)),
    "llama-one-layer": Tiny(LLAMA, BASE | dict(num_hidden_layers=1, tie_word_embeddings=True)),
    "qwen3": Tiny(QWEN3, BASE | dict(head_dim=16)),
    "qwen3-biased": Tiny(QWEN3, BASE | dict(head_dim=24, attention_bias=True, tie_word_embeddings=True)),
    "qwen3-odd": Tiny(QWEN3, BASE | dict(num_attention_heads=3, num_key_value_heads=3, head_dim=6)),
    "qwen3-linear": Tiny(QWEN3, BASE | dict(head_dim=16, rope_parameters=LINEAR, num_key_value_heads=1)),
}
FAST = [
    ("llama-3", "whole"),
    ("llama-3", "all-at-once"),
    ("llama-biased", "pre-empted"),
    ("qwen3", "whole"),
    ("qwen3", "chunks-of-7"),
]
WITHOUT_STATE = {name: options for name, options in VARIANTS.items() if name != "opposite-axis-order"}

BF16_WEIGHTS_KL = 1e-2
"""Of any position. The worst measured is 2e-3."""

oracle_of = oracles(MODELS)


@pytest.mark.parametrize("name", slow_but(("llama-3", "llama-biased", "qwen3"), MODELS))
def test_keys_and_values_matter(oracle_of: OracleOf, name: str) -> None:
    assert_state_matters(oracle_of(name), MIXED)


@pytest.mark.parametrize(("name", "variant"), slow_but(FAST, product(MODELS, WITHOUT_STATE)))
def test_equal_to_transformers(oracle_of: OracleOf, name: str, variant: str) -> None:
    oracle = oracle_of(name)
    outputs = serve(oracle.directory, MIXED, **VARIANTS[variant])
    assert_equal_to_oracle(oracle, MIXED, outputs)
    if "num_pages" in VARIANTS[variant]:
        assert sum(output.metrics.preemptions for output in outputs)


def test_exact_mode_gives_the_same_bits(oracle_of: OracleOf) -> None:
    oracle, given = oracle_of("qwen3"), prompts(150, 90, 64, 5, 1, seed=3)
    together = serve(oracle.directory, given, exact=True)
    assert_equal_to_oracle(oracle, given, together)
    apart = serve(oracle.directory, given, exact=True, **VARIANTS["all-at-once"])
    assert sum(output.metrics.preemptions for output in apart)
    assert bits(apart) == bits(together)
    assert bits(serve(oracle.directory, given[1:2], exact=True)) == bits(together[1:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3", "llama-odd", "qwen3-biased"])
def test_exact_mode_gives_the_same_bits_in_every_variant(oracle_of: OracleOf, name: str) -> None:
    oracle = oracle_of(name)
    whole = serve(oracle.directory, MIXED, exact=True)
    assert_equal_to_oracle(oracle, MIXED, whole)
    for variant, options in WITHOUT_STATE.items():
        assert bits(serve(oracle.directory, MIXED, exact=True, **options)) == bits(whole), variant
    for prompt, output in zip(MIXED, whole, strict=True):
        assert bits(serve(oracle.directory, [prompt], exact=True)) == bits([output])


@pytest.mark.parametrize("name", ["llama-biased", "qwen3"])
def test_bfloat16_weights(tmp_path: Path, name: str) -> None:
    assert worst_kl_in_bfloat16(MODELS[name], tmp_path) < BF16_WEIGHTS_KL


def test_no_slots_and_no_state(oracle_of: OracleOf) -> None:
    llm = LLM(oracle_of("qwen3").directory, max_num_seqs=3, max_model_len=CONTEXT)
    runner = llm._engine.runner
    assert llm._engine.capacity.limits.num_slots == 0
    assert runner.state.slot_bytes == runner.state.row_bytes == 0 and runner.kv.nbytes > 0
    outputs = llm.generate(prompts(5, 70, 20, 3))  # more than there are rows
    assert all(output.finish_reason for output in outputs)


# --- config and weights ------------------------------------------------------------------------------------

HUB_LLAMA: dict[str, Any] = {
    "architectures": [LLAMA],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
HUB_QWEN3: dict[str, Any] = {
    "architectures": [QWEN3],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_configs_as_the_hub_has_them() -> None:
    older = llama.parse(HUB_LLAMA)
    assert (older.attention.head_dim, older.attention.eps, older.max_positions) == (128, None, 131072)
    parameters = HUB_LLAMA["rope_scaling"] | {"rope_theta": 500000.0}
    newer = {name: value for name, value in HUB_LLAMA.items() if not name.startswith("rope_")}
    assert llama.parse(newer | {"rope_parameters": parameters, "head_dim": None}) == older
    config = qwen3.parse(HUB_QWEN3)
    assert (config.rotary.theta, config.attention.eps, config.layers) == (1e6, 1e-6, 36)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SLIDING = ["full_attention"] * 35 + ["sliding_attention"]


@pytest.mark.parametrize(
    ("model", "change", "complaint"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu' is not implemented here"),
        ("llama", {"rope_scaling": YARN}, "rope_type='yarn' is not implemented here"),
        ("qwen3", {"rope_scaling": YARN}, "rope_type='yarn' is not implemented here"),
        ("llama", {"rope_scaling": {"type": "dynamic"}}, "type='dynamic' is not implemented here"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ("llama", {"rope_scaling": {"beta_slow": 1}}, "rope_scaling: unknown fields beta_slow"),
        ("llama", {"rope_parameters": LINEAR}, "rope_parameters and rope_scaling disagree"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not implemented here"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved=True is not implemented here"),
        ("llama", {"sliding_window": 4096}, "unknown fields sliding_window"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window=True is not implemented here"),
        ("qwen3", {"layer_types": SLIDING}, "layer_types holds 'sliding_attention'"),
        ("qwen3", {"qk_norm": False}, "unknown fields qk_norm"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    model: str, change: dict[str, Any], complaint: str
) -> None:
    parse, config = {"llama": (llama.parse, HUB_LLAMA), "qwen3": (qwen3.parse, HUB_QWEN3)}[model]
    with pytest.raises(ConfigError) as refused:
        parse(config | change)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR, DEFAULT], ids=lambda rope: rope["rope_type"])
def test_rotary_tables_have_the_same_bits(rope: dict[str, Any]) -> None:
    """Through every part of llama3's blend: wavelengths shorter, longer and between."""
    config = MODELS["llama"].build().config
    config.rope_parameters = rope
    positions = torch.arange(700)
    wanted = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    parsed = llama.parse(HUB_LLAMA | {"rope_scaling": rope})
    for ours, theirs in zip(rotary_table(parsed.rotary, 12, 700), wanted, strict=True):
        assert torch.equal(torch.cat((ours, ours), -1), theirs[0])


def test_a_table_of_angles_in_the_files_is_not_used(oracle_of: OracleOf, tmp_path: Path) -> None:
    oracle = oracle_of("llama-3")
    weights = load_file(oracle.directory / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(6)
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((oracle.directory / "config.json").read_text())
    given = prompts(9)
    assert_equal_to_oracle(oracle, given, serve(tmp_path, given, 8))
