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
"""For every option."""

EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
SHARED: dict[str, Any] = EXPERTS | {"shared_expert_intermediate_size": 20}
MAMBA_HYBRID: dict[str, Any] = ATTENTION | {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
}
MAMBA: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 16}
NEMOTRON_H: dict[str, Any] = ATTENTION | {
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M*-E",
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 16,
    "n_groups": 2,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 20,
    "moe_latent_size": 16,
}
ZOO: dict[str, dict[str, Any]] = {
    "qwen3_moe": ATTENTION | EXPERTS | {"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0]},
    "qwen3_next": QWEN3_5 | SHARED | {"architectures": ["Qwen3NextForCausalLM"]},
    "qwen3_5_moe": QWEN3_5 | SHARED | {"architectures": ["Qwen3_5MoeForCausalLM"]},
    "lfm2_moe": {key: value for key, value in LFM2.items() if key != "block_multiple_of"}
    | EXPERTS
    | {"architectures": ["Lfm2MoeForCausalLM"], "num_dense_layers": 1},
    "granite": MAMBA_HYBRID
    | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 6,
        "shared_intermediate_size": 20,
    },
    "granite-dense": MAMBA_HYBRID
    | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "num_local_experts": 0,
        "shared_intermediate_size": 20,
    },
    "falcon_h1": MAMBA_HYBRID | {"architectures": ["FalconH1ForCausalLM"], "mamba_d_ssm": 64},
    "nemotron_h": NEMOTRON_H | {"architectures": ["NemotronHForCausalLM"]},
    "mamba": {"architectures": ["MambaForCausalLM"], **MAMBA},
    "falcon_mamba": {"architectures": ["FalconMambaForCausalLM"], **MAMBA},
    "jamba": ATTENTION
    | {
        "architectures": ["JambaForCausalLM"],
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 6,
        "mamba_d_state": 16,
    },
    "kimi_linear": ATTENTION
    | EXPERTS
    | {
        "architectures": ["KimiLinearForCausalLM"],
        "layer_types": ["linear_attention", "full_attention"],
        "num_key_value_heads": 4,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "linear_num_heads": 2,
        "linear_head_dim": 8,
    },
    "minimax": ATTENTION
    | {
        "architectures": ["MiniMaxForCausalLM"],
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 6,
    },
    "olmo_hybrid": ATTENTION
    | {"architectures": ["OlmoHybridForCausalLM"], "layer_types": ["linear_attention", "full_attention"]},
    "zamba2": ATTENTION
    | {
        "architectures": ["Zamba2ForCausalLM"],
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "head_dim": 16,
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "adapter_rank": 4,
        "use_shared_attention_adapter": True,
    },
    "bamba": MAMBA_HYBRID | {"architectures": ["BambaForCausalLM"], "attn_layer_indices": [1]},
}
"""Of other layers and weights, which options do not treat differently."""
EVERY = TINY | ZOO


def published(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return values


def write(directory: Path, config: dict[str, Any]) -> Path:
    """A directory that holds this config.json and no weights."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory
