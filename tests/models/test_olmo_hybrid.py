"""Delta nets whose states may turn over, beside attention that is normed after: equal to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.models.conformance import Tiny, oracles, worst_kl_in_bfloat16
from tests.models.zoo import (
    Served,
    assert_weights_are_counted,
)

from holdfast import ConfigError
from holdfast.models import olmo_hybrid

BASE: dict[str, Any] = dict(
    hidden_size=48,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=10,
    max_position_embeddings=1024,
    pad_token_id=0,
)
KINDS = {"d": "linear_attention", "a": "full_attention"}
NO_POSITIONS = dict(rope_parameters={"rope_type": "default", "rope_theta": None})


class AsOnTheHub(Tiny):
    """transformers reads one convolution each for q, k and v, but writes three of equal size whatever theirs are."""

    def build(self, seed: int = 0) -> transformers.PreTrainedModel:
        model = super().build(seed)
        save = model.save_pretrained

        def save_and_divide(directory: Path) -> None:
            save(directory)
            _divide(Path(directory) / "model.safetensors", model.config)

        model.save_pretrained = save_and_divide
        return model


def _divide(file: Path, config: Any) -> None:
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    sizes = (keys, keys, config.linear_num_value_heads * config.linear_value_head_dim)
    tensors = load_file(file)
    for first in [name for name in tensors if name.endswith("q_conv1d.weight")]:
        names = [first.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        whole = torch.cat([tensors[name] for name in names])
        tensors |= {name: part.clone() for name, part in zip(names, whole.split(sizes), strict=True)}
    save_file(tensors, file, metadata={"format": "pt"})


def olmo(letters: str, **options: Any) -> Tiny:
    own = dict(num_hidden_layers=len(letters), layer_types=[KINDS[letter] for letter in letters])
    return AsOnTheHub("OlmoHybridForCausalLM", BASE | own | options)


MODELS = {
    "olmo_hybrid": olmo("dda", **NO_POSITIONS),
    "olmo_hybrid-turning": olmo("ad", tie_word_embeddings=True),
    "olmo_hybrid-positive": olmo("da", linear_allow_neg_eigval=False, attention_bias=True),
    "olmo_hybrid-odd": olmo(
        "da",
        num_attention_heads=3,
        num_key_value_heads=3,
        linear_num_key_heads=3,
        linear_num_value_heads=9,
        linear_key_head_dim=7,
        linear_conv_kernel_dim=3,
    ),
}
"""There is always one layer of each kind: transformers refuses other configs."""
FAST = [("olmo_hybrid", "all-at-once"), ("olmo_hybrid-turning", "whole")]

BF16_WEIGHTS_KL = 0.12
"""Of any position. The worst measured is 0.04."""

oracle_of = oracles(MODELS)


class TestServed(Served):
    models, families, every_day = MODELS, ("olmo_hybrid",), FAST


def test_bfloat16_weights(tmp_path: Path) -> None:
    assert worst_kl_in_bfloat16(MODELS["olmo_hybrid"], tmp_path) < BF16_WEIGHTS_KL


# --- configs -----------------------------------------------------------------------------------------------

HUB: dict[str, Any] = {
    "architectures": ["OlmoHybridForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 3840,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_allow_neg_eigval": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 96,
    "linear_num_key_heads": 30,
    "linear_num_value_heads": 30,
    "linear_value_head_dim": 192,
    "max_position_embeddings": 65536,
    "model_type": "olmo_hybrid",
    "num_attention_heads": 30,
    "num_hidden_layers": 4,
    "num_key_value_heads": 30,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}


def test_a_config_as_the_hub_has_it() -> None:
    config = olmo_hybrid.parse(HUB)
    assert config.rotary is None and (config.delta_net.beta_scale, config.delta_net.eps) == (2.0, 1e-5)
    derived = [name for name in HUB if name.startswith("linear_") or name == "layer_types"]
    assert olmo_hybrid.parse({name: HUB[name] for name in HUB if name not in derived}) == config
    turning = olmo_hybrid.parse(HUB | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})
    assert turning.rotary is not None and turning.rotary.theta == 5e5


def test_the_plan_counts_published_weights(tmp_path: Path) -> None:
    assert_weights_are_counted(tmp_path, HUB)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"layer_types": ["sliding_attention"] * 4}, "layer_types holds 'sliding_attention'"),
    ({"linear_num_value_heads": 31}, "linear_num_value_heads=31 must be a multiple"),
    ({"linear_use_gate": False}, "unknown fields linear_use_gate"),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSALS, ids=[r[1] for r in REFUSALS])
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        olmo_hybrid.parse(HUB | change)
    assert complaint in str(refused.value)
