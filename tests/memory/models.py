"""One tiny model of each architecture, built from a config as the hub has it, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from tests.capacity.shapes import ZOO

from holdfast.config import Limits
from holdfast.executor.runner import Runner
from holdfast.layers.batch import Build
from holdfast.models import registry
from holdfast.models.base import CausalLM
from holdfast.ops.backend import choose
from holdfast.spec.ensemble import Ensemble

from .spy import poison

VOCAB = 50

_QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "max_position_embeddings": 512,
}

_ATTENTION: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 24,
        "block_multiple_of": 8,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "conv_bias": True,
        "max_position_embeddings": 512,
    },
    "qwen3_5": _QWEN3_5,
    "qwen3_5_vl": {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {name: value for name, value in _QWEN3_5.items() if name != "architectures"},
    },
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 8,
        "n_groups": 2,
        "state_size": 6,
    },
    "llama": {"architectures": ["LlamaForCausalLM"], **_ATTENTION},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 8, **_ATTENTION},
    **{name: config | {"vocab_size": VOCAB} for name, config in ZOO.items()},
    "qwen3_5_moe_vl": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": ZOO["qwen3_5_moe"] | {"vocab_size": VOCAB},
    },
}
RECURRENT = [name for name in CONFIGS if name not in ("llama", "qwen3", "qwen3_moe")]

LIMITS = Limits(
    max_num_seqs=4,
    max_num_batched_tokens=256,
    max_model_len=200,
    vocab_size=VOCAB,
    page_size=16,
    num_pages=40,
    num_slots=10,
    fold_every=4,
    max_window=2,
)


def build_model(name: str, *, exact: bool = False, backend: str = "reference") -> CausalLM:
    architecture = registry.find(CONFIGS[name])
    build = Build(
        ops=choose(backend, exact=exact),
        dtype=torch.float32,
        state_dtype=torch.float32,
        max_positions=LIMITS.max_model_len + LIMITS.max_window,
    )
    model = architecture.build(build, architecture.parse(CONFIGS[name]))
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.normal_(std=weight.shape[-1] ** -0.5, generator=generator)
    return model


def build_runner(name: str, *, exact: bool = False, backend: str = "reference") -> Runner:
    """Every byte of its pools is NaN until a step writes it, padding included."""
    model = build_model(name, exact=exact, backend=backend)
    runner = Runner(Ensemble(model), LIMITS, torch.device("cpu"))
    poison(runner.state)
    for parts in runner.kv.layers.values():
        for part in parts:
            part.fill_(torch.nan)
    return runner
