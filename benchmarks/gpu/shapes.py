"""Models at their published shapes, and prompts for them.

Whoever is measured beside Holdfast uses these too, so nothing of it is imported here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

LFM2_1_2B: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "block_use_swiglu": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "eos_token_id": 7,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "tie_embedding": True,
    "vocab_size": 65536,
}
QWEN35_4B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 2560,
    "intermediate_size": 9216,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "tie_word_embeddings": True,
    "eos_token_id": 248044,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
}
QWEN35_35B_A3B: dict[str, Any] = {
    **QWEN35_4B,
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
del QWEN35_35B_A3B["intermediate_size"]
MODELS = {"lfm2-1.2b": LFM2_1_2B, "qwen3.5-4b": QWEN35_4B, "qwen3.5-35b-a3b": QWEN35_35B_A3B}
DENSE = ("lfm2-1.2b", "qwen3.5-4b")
PROMPT, OUT = 512, 128
"""Tokens of a prompt, and of an answer, wherever decoding is measured."""


@contextmanager
def folder(config: dict[str, Any]) -> Iterator[str]:
    """One that holds this config.json, and no weights."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config))
        yield directory


def batches_of(name: str, batches: list[int]) -> list[int]:
    """Those at which a model is measured."""
    return [n for n in batches if n <= (256 if name == "lfm2-1.2b" else 64)]


def prompts(name: str, batch: int, length: int, seed: int) -> list[list[int]]:
    draws = torch.Generator().manual_seed(seed)
    most = min(MODELS[name]["vocab_size"], 60_000)
    return torch.randint(100, most, (batch, length), generator=draws).tolist()
