"""Configs to size: tiny ones of every architecture, and two that were published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parent / "configs"

LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "block_multiple_of": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "layer_types": ["conv", "full_attention", "conv"],
}
QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "max_position_embeddings": 512,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}
ATTENTION: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
MAMBA2: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 8,
    "n_groups": 2,
    "state_size": 16,
}
TINY: dict[str, dict[str, Any]] = {
    "lfm2": LFM2,
    "lfm2-recurrent": LFM2 | {"layer_types": ["conv"] * 3, "tie_word_embeddings": False, "conv_bias": True},
    "lfm2-attention": LFM2 | {"layer_types": ["full_attention"] * 3},
    "qwen3_5": QWEN3_5,
    "qwen3_5-recurrent": QWEN3_5 | {"layer_types": ["linear_attention"] * 3, "tie_word_embeddings": True},
    "qwen3_5-attention": QWEN3_5 | {"layer_types": ["full_attention"] * 3},
    "mamba2": MAMBA2,
    "llama": ATTENTION | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "qwen3": ATTENTION | {"architectures": ["Qwen3ForCausalLM"]},
}


def published(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return values


def write(directory: Path, config: dict[str, Any]) -> Path:
    """A directory that holds this config.json and no weights."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory
