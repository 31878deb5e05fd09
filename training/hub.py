"""Configurations of the models in the box, and their files as the hub has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .models import Config
from .prepare import CONTEXT, VOCAB

END_OF_TEXT, IM_END = 0, 2

_IDS: Config = {"bos_token_id": None, "eos_token_id": IM_END, "pad_token_id": END_OF_TEXT}

SMALL: Config = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 576,
    "num_hidden_layers": 8,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
    **_IDS,
}

LFM2: Config = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 6,
    "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "conv_bias": False,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    **_IDS,
}

TINY_SMALL: Config = {
    **SMALL,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
TINY_LFM2: Config = {**LFM2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}

CONFIGS: Mapping[str, Config] = {
    "small": SMALL,
    "lfm2": LFM2,
    "tiny-small": TINY_SMALL,
    "tiny-lfm2": TINY_LFM2,
}


def save(directory: Path, config: Config, weights: Mapping[str, Tensor]) -> None:
    """config.json and model.safetensors, everything in bfloat16 but what counts."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    write_tensors(directory / "model.safetensors", weights)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    rounded = {
        name: (it.bfloat16() if it.is_floating_point() else it).detach().cpu().contiguous()
        for name, it in tensors.items()
    }
    save_file(rounded, path, metadata={"format": "pt"})


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text(encoding="utf-8"))


def load(model: nn.Module, directory: Path) -> None:
    weights = load_file(directory / "model.safetensors")
    model.load_state_dict({name: tensor.to(torch.float32) for name, tensor in weights.items()})
