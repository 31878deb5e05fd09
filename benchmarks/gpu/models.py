"""Engines with random weights, and how runs of them are timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from holdfast import LLM, SamplingParams

from .shapes import MODELS, folder
from .timing import Moments, noted


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
    with folder(MODELS[name]) as directory:
        llm = LLM(directory, **options(lanes, **others))
        gc.collect()
        gc.freeze()  # as the server does: a collection of all that was loaded takes 0.1 s and more
        try:
            yield llm
        finally:
            gc.unfreeze()
            vars(llm).clear()  # the caller still has it, and the next engine needs the memory
            give_back()


def give_back() -> None:
    """What nobody holds any more, to the device."""
    gc.collect()
    torch.cuda.empty_cache()


def timed(llm: LLM, given: list[list[int]], tokens: int) -> tuple[Moments, list[list[int]]]:
    """And the answers."""
    with noted(llm._service) as moments:
        outputs = llm.generate(given, SamplingParams(max_tokens=tokens, ignore_eos=True), progress=False)
    return moments, [list(o.token_ids) for o in outputs]


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
