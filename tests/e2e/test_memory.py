"""A long life leaves nothing behind: not an id, not an object, not a byte."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from tests.random_model import random_model

from holdfast import LLM, SamplingParams

STATM = Path("/proc/self/statm")
PAGE = 4096


def resident() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * PAGE


@pytest.mark.skipif(not STATM.exists(), reason="asks the kernel for the resident memory, as Linux tells it")
def test_two_thousand_requests_leave_memory_flat() -> None:
    llm = LLM(random_model(), max_num_seqs=32, max_model_len=256, num_pages=80)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    served, sizes = 0, []
    for turn in range(10):
        prompts = [[3 + (served + i) % 200, 7, turn] * (1 + i % 9) for i in range(200)]
        assert all(len(output.token_ids) == 4 for output in llm.generate(prompts, params))
        served += len(prompts)
        sizes.append(resident())
    assert served == 2000
    grown = sizes[-1] - sizes[1]  # the first rounds warm caches up
    assert grown < 4 << 20, f"resident memory grew by {grown / 2**20:.1f} MiB over {served} requests: {sizes}"
    audit = llm._engine.scheduler._cache.check()
    assert audit.leaked == 0 and not llm._engine.has_work
    assert not llm._service._answers
