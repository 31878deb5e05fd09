"""The loop on a GPU: it never waits for the device, but for the step before, and asks it for no memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.capacity.shapes import LFM2, QWEN3_5, write

from holdfast.config import EngineConfig
from holdfast.engine import Engine, build_engine
from holdfast.request import Request, SamplingParams

DELTA = QWEN3_5 | {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
pytestmark = pytest.mark.gpu


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def serve(engine: Engine, seed: int) -> None:
    """Prompts of several lengths in chunks, then decoding; some end before others."""
    draws = torch.Generator().manual_seed(seed)
    for number, length in enumerate((5, 40, 100, 17)):
        prompt = tuple(torch.randint(90, (length,), generator=draws).tolist())
        params = SamplingParams(max_tokens=20 + 10 * number, temperature=0.0, ignore_eos=True)
        engine.submit(Request(f"{seed}-{number}", prompt, params))
    while engine.has_work:
        engine.step()


@pytest.mark.parametrize("options", [{}, {"eager": True}, NGRAM], ids=["recorded", "eager", "drafts"])
@pytest.mark.parametrize("config", [LFM2, DELTA], ids=["lfm2", "qwen3_5"])
def test_no_waiting_and_no_allocation(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any]
) -> None:
    asked: dict[str, Any] = dict(device="cuda", dtype="bfloat16", load_format="dummy", memory="256MiB")
    sizes: dict[str, Any] = dict(max_num_seqs=3, max_model_len=192, max_num_batched_tokens=64)
    engine = build_engine(write(tmp_path / "model", config), EngineConfig(**asked, **sizes, **options))
    serve(engine, 0)  # kernels are compiled, and the allocator has seen every size
    before = torch.cuda.memory_stats()["num_device_alloc"]
    with waiting_is_an_error():
        serve(engine, 1)
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
