"""What is sent, and when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.bench.workloads import BLOCK, poisson, shared_prefix, trace


def test_poisson_keeps_its_rate_and_repeats() -> None:
    shots = poisson(2000, rate=50.0, input_len=7, output_len=3, seed=1)
    assert 35 < shots[-1].at < 45
    assert all(len(shot.prompt.split()) == 7 and shot.max_tokens == 3 for shot in shots)
    assert shots == poisson(2000, rate=50.0, input_len=7, output_len=3, seed=1)
    assert shots != poisson(2000, rate=50.0, input_len=7, output_len=3, seed=2)
    assert {shot.at for shot in poisson(5, float("inf"), 1, 1, 0)} == {0.0}


def test_prompts_of_a_group_begin_alike() -> None:
    shots = shared_prefix(60, float("inf"), 20, 1, seed=3, groups=4, share=0.75)
    beginnings = {tuple(shot.prompt.split()[:15]) for shot in shots}
    assert len(beginnings) == 4 and len({shot.prompt for shot in shots}) == 60
    assert all(len(shot.prompt.split()) == 20 for shot in shots)


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    entries = [
        {"timestamp": 2000, "input_length": BLOCK + 10, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 0, "input_length": 2 * BLOCK, "output_length": 6, "hash_ids": [1, 3]},
        {"timestamp": 500, "prompt": "as it is", "output_length": 7},
    ]
    file.write_text("\n".join(json.dumps(entry) for entry in entries))
    shots = trace(file, count=10, seed=0, speed=2.0)
    assert [shot.at for shot in shots] == [0.0, 0.25, 1.0] and [s.max_tokens for s in shots] == [6, 7, 5]
    assert shots[1].prompt == "as it is"
    words = [shot.prompt.split() for shot in shots]
    assert words[0][:BLOCK] == words[2][:BLOCK] and len(words[2]) == BLOCK + 10
    assert len(words[0]) in (2 * BLOCK, 2 * BLOCK + 1)
    file.write_text('{"timestamp": 1}')
    with pytest.raises(ValueError, match="line 1"):
        trace(file, count=1, seed=0)
