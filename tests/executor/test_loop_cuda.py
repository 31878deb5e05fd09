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
from holdfast.executor.profile import SEGMENTS
from holdfast.request import Request, SamplingParams

DELTA = QWEN3_5 | {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
KINDS = pytest.mark.parametrize("options", [{}, {"eager": True}, NGRAM], ids=["recorded", "eager", "drafts"])
MODELS = pytest.mark.parametrize("config", [LFM2, DELTA], ids=["lfm2", "qwen3_5"])
pytestmark = pytest.mark.gpu


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def build(tmp_path: Path, config: dict[str, Any], **options: Any) -> Engine:
    asked: dict[str, Any] = dict(device="cuda", dtype="bfloat16", load_format="dummy")
    return build_engine(write(tmp_path / "model", config), EngineConfig(**asked, **options))


def serve(engine: Engine, seed: int) -> None:
    """Prompts of several lengths in chunks, then decoding; some end before others."""
    draws = torch.Generator().manual_seed(seed)
    for number, length in enumerate((5, 40, 100, 17)):
        prompt = tuple(torch.randint(90, (length,), generator=draws).tolist())
        params = SamplingParams(max_tokens=20 + 10 * number, temperature=0.0, ignore_eos=True)
        engine.submit(Request(f"{seed}-{number}", prompt, params))
    while engine.has_work:
        engine.step()


@KINDS
@MODELS
def test_no_waiting_and_no_allocation(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any]
) -> None:
    sizes: dict[str, Any] = dict(max_num_seqs=3, max_model_len=192, max_num_batched_tokens=64)
    engine = build(tmp_path, config, memory="256MiB", **sizes, **options)
    serve(engine, 0)  # kernels are compiled, and the allocator has seen every size
    before = torch.cuda.memory_stats()["num_device_alloc"]
    with waiting_is_an_error():
        serve(engine, 1)
    assert torch.cuda.memory_stats()["num_device_alloc"] == before


WIDE: dict[str, Any] = dict(hidden_size=512, intermediate_size=1024, vocab_size=1 << 15)
DEMANDING = SamplingParams(
    max_tokens=40,
    ignore_eos=True,
    temperature=1.0,
    top_p=0.9,
    presence_penalty=0.5,
    logprobs=20,
    prompt_logprobs=20,
)


@KINDS
@MODELS
def test_there_is_memory_for_all_from_the_first_request_on(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As many requests as there are rows, with long prompts and all that can be asked for: what was measured at start
    is enough, and was taken then; but for a segment of each kind, since torch meets sizes in another order."""
    torch.cuda.init()  # there are no statistics before
    before, plain = torch.cuda.memory_stats(), SamplingParams(max_tokens=40, ignore_eos=True)
    engine = build(tmp_path, config | WIDE, memory="2GiB", max_num_seqs=24, max_model_len=500, **options)
    built = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    draws = torch.Generator().manual_seed(0)
    for number in range(40):
        prompt = tuple(torch.randint(90, (400 - 7 * number,), generator=draws).tolist())
        engine.submit(Request(f"{number}", prompt, plain if number % 3 else DEMANDING))
    while engine.has_work:
        engine.step()
    served = torch.cuda.memory_stats()
    most = served["requested_bytes.all.peak"] - before["requested_bytes.all.current"]
    assert most <= engine.capacity.parts.total
    assert served["reserved_bytes.all.peak"] <= built["reserved_bytes.all.current"] + SEGMENTS
    assert not caplog.records, "recordings took no more than planned"
