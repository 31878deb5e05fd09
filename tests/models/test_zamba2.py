"""Mamba-2 with transformer blocks that layers share: equal to transformers, and to itself in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.models.conformance import Tiny, oracles, worst_kl_in_bfloat16
from tests.models.zoo import (
    Served,
    assert_weights_are_counted,
)

from holdfast import ConfigError
from holdfast.models import zamba2

BASE: dict[str, Any] = dict(
    hidden_size=48,
    intermediate_size=64,
    num_attention_heads=4,
    n_mamba_heads=8,
    mamba_d_state=8,
    mamba_ngroups=2,
    chunk_size=16,
    adapter_rank=6,
    max_position_embeddings=1024,
    time_step_min=1e-9,  # time steps are not raised to it here; transformers does so, and in prefill only
)
KINDS = {"m": "linear_attention", "h": "hybrid"}


class Quiet(Tiny):
    """Nothing goes past a shared block: with loud weights float32 rounds these models by more than the tolerance."""

    loudness = 0.2

    def build(self, seed: int = 0) -> transformers.PreTrainedModel:
        model = super().build(seed)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "adapter" in name or name.endswith("q_proj.weight"):
                    weight.mul_(self.loudness)
        return model


class Quieter(Quiet):
    """Products round otherwise on every processor."""

    loudness = 0.1


def zamba(letters: str, kind: type[Tiny] = Quiet, **options: Any) -> Tiny:
    own = dict(num_hidden_layers=len(letters), layers_block_type=[KINDS[letter] for letter in letters])
    return kind("Zamba2ForCausalLM", BASE | own | options)


MODELS = {
    "zamba2": zamba("mhhmh", num_mem_blocks=2, use_shared_attention_adapter=True, use_mem_rope=True),
    "zamba2-plain": zamba("mhh"),
    "zamba2-biased": zamba("hm", add_bias_linear=True, use_mem_rope=True),
    "zamba2-recurrent": zamba("mm"),
    "zamba2-hybrid": zamba("hh", Quieter, num_mem_blocks=3),
    "zamba2-odd": zamba(
        "mh", num_attention_heads=3, n_mamba_heads=3, mamba_ngroups=3, mamba_d_state=7, mamba_d_conv=3
    ),
}
FAST = [("zamba2", "all-at-once")]

BF16_WEIGHTS_KL = 0.15
"""Of any position; nothing goes past a shared block, so rounding weighs more. The worst measured is 0.05."""

oracle_of = oracles(MODELS)


class TestServed(Served):
    models, families, every_day = MODELS, ("zamba2",), FAST


def test_bfloat16_weights(tmp_path: Path) -> None:
    assert worst_kl_in_bfloat16(MODELS["zamba2"], tmp_path) < BF16_WEIGHTS_KL


# --- configs -----------------------------------------------------------------------------------------------

HUB: dict[str, Any] = {
    "adapter_rank": 128,
    "add_bias_linear": False,
    "architectures": ["Zamba2ForCausalLM"],
    "attention_dropout": 0.0,
    "attention_head_dim": 160,
    "attention_hidden_size": 5120,
    "bos_token_id": 1,
    "chunk_size": 256,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_size": 2560,
    "hybrid_layer_ids": [2, 4, 5],
    "initializer_range": 0.02,
    "intermediate_size": 10240,
    "kv_channels": 80,
    "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "hybrid", "hybrid"],
    "mamba_d_conv": 4,
    "mamba_d_state": 64,
    "mamba_expand": 2,
    "mamba_headdim": 64,
    "mamba_ngroups": 1,
    "max_position_embeddings": 4096,
    "model_type": "zamba2",
    "n_mamba_heads": 80,
    "num_attention_heads": 32,
    "num_hidden_layers": 6,
    "num_key_value_heads": 32,
    "num_logits_to_keep": 1,
    "num_mem_blocks": 2,
    "num_query_groups": 32,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000,
    "time_step_floor": 0.0001,
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "use_cache": True,
    "use_conv_bias": True,
    "use_long_context": False,
    "use_mamba_kernels": True,
    "use_mem_eff_path": True,
    "use_mem_rope": False,
    "use_shared_attention_adapter": False,
    "vocab_size": 32000,
}


def test_a_config_as_the_hub_has_it() -> None:
    config = zamba2.parse(HUB)
    assert config.hybrid_layers == (2, 4, 5) and config.rotary is None
    assert (config.attention.head_dim, config.attention.inputs, config.mamba.head_dim) == (160, 5120, 64)
    default = zamba2.parse(
        {name: value for name, value in HUB.items() if name != "layers_block_type"}
        | {"num_hidden_layers": 54}
    )
    assert default.hybrid_layers == (6, 12, 18, 24, 30, 36, 42, 47, 51)


def test_the_plan_counts_published_weights(tmp_path: Path) -> None:
    assert_weights_are_counted(tmp_path, HUB)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_act": "silu"}, "hidden_act='silu' is not implemented"),
    ({"use_long_context": True}, "use_long_context=True is not implemented"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not implemented"),
    ({"layers_block_type": ["conv"] * 6}, "layers_block_type holds 'conv'"),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSALS, ids=[r[1] for r in REFUSALS])
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        zamba2.parse(HUB | change)
    assert complaint in str(refused.value)
