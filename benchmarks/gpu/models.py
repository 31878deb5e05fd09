"""Models at their published shapes, filled with random weights, and how runs of them are timed."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast import LLM, SamplingParams

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


@contextmanager
def folder(name: str) -> Iterator[str]:
    """One that holds the model's config.json, and no weights."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(MODELS[name]))
        yield directory


def options(lanes: int, **others: Any) -> dict[str, Any]:
    """How all engines here are built."""
    return {
        "device": "cuda",
        "dtype": "bfloat16",
        "load_format": "dummy",
        "max_num_seqs": lanes,
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
        **others,
    }


@contextmanager
def serving(name: str, lanes: int, **others: Any) -> Iterator[LLM]:
    with folder(name) as directory:
        llm = LLM(directory, **options(lanes, **others))
        yield llm
        del llm
    gc.collect()
    torch.cuda.empty_cache()


def prompts(name: str, batch: int, length: int, seed: int) -> list[list[int]]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(
        100, min(MODELS[name]["vocab_size"], 60_000), (batch, length), generator=draws
    ).tolist()


def timed(llm: LLM, given: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    begun = time.perf_counter()
    outputs = llm.generate(given, SamplingParams(max_tokens=tokens, ignore_eos=True), progress=False)
    return time.perf_counter() - begun, [list(o.token_ids) for o in outputs]


def rates() -> tuple[float, float]:
    """Bytes a second that a copy moves, operations a second that a bf16 matrix product does."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def seconds(work: Any) -> float:
        work()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e4

    return 2 * a.numel() / seconds(lambda: b.copy_(a)), 2 * 8192**3 / seconds(lambda: x @ x)


def floor(llm: LLM, name: str, batch: int, context: int, copy: float, matmul: float) -> float:
    """Seconds of a decode step, at the least: weights once; state read, and written by folds; KV read.

    Of experts only those that somebody chose are read: so many as equal chances give.
    """
    runner, limits, config = llm._service.engine.runner, llm.capacity.limits, MODELS[name]
    count, chosen = config.get("num_experts", 1), config.get("num_experts_per_tok", 1)
    read = used = 0.0
    tied = config.get("tie_word_embeddings", config.get("tie_embedding", False))
    for path, parameter in runner.model.named_parameters():
        touched = active = 1.0
        if parameter.dim() == 3 and len(parameter) == count:
            touched, active = 1 - (1 - chosen / count) ** batch, chosen / count
        elif path.startswith("embed") and not tied:
            touched = active = 0.0
        read += touched * parameter.numel() * parameter.element_size()
        used += active * parameter.numel()
    state = runner.state.slot_bytes / (limits.num_slots + 1) if runner.state.layers else 0
    kv = runner.kv.nbytes / (limits.num_pages + 1) / limits.page_size
    moved = read + batch * (state * (1 + 1 / limits.fold_every) + kv * context)
    return max(moved / copy, 2 * batch * used / matmul)
