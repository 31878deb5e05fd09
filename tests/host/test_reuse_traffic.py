"""Traffic that shares prefixes, at sizes that real pages have: the default policy, and the benchmark's stand-in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.cache import Policy

from .harness import Harness, make_limits, make_request

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "prefix_reuse.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prefix_reuse", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page_size", [16, 32, 64])
@pytest.mark.parametrize("shared", [500, 528, 600, 700])
def test_a_shift_of_a_hundred_tokens_loses_no_hits(shared: int, page_size: int) -> None:
    """From the third on every request resumes at the last page of what they share: the second saw the branch."""
    limits = make_limits(
        page_size=page_size,
        fold_every=16,
        max_model_len=1024,
        max_num_batched_tokens=512,
        num_pages=400,
        num_slots=12,
        vocab_size=1000,
    )
    harness = Harness(limits, 1, prefix_reuse=True, policy=Policy())
    stem, cached = tuple(range(shared)), []
    for number in range(8):
        request = make_request(f"{number}", (*stem, *(900 + number + i % 7 for i in range(90))), max_tokens=2)
        harness.submit(request)
        harness.drain()
        cached.append(request.metrics.cached_tokens)
    assert cached == [0, 0] + [shared // page_size * page_size] * 6


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load()


def test_the_policy_recomputes_less_than_one_state_each(benchmark: ModuleType) -> None:
    turns = list(benchmark.branching(0, 150))
    assert len(turns) == 150 and any(turn.after is not None for turn in turns)
    usual, ours = (benchmark.replay(turns, p, 32, 1 << 14) for p in benchmark.POLICIES.values())
    assert usual.counters.resumed_tokens > 0
    assert ours.recomputed < usual.recomputed
    assert ours.counters.evicted_checkpoints
    assert ours.seconds < 60 * ours.trace_tokens / 1e6, "a million tokens a minute"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_conversations_that_branch_recompute_a_third_less(benchmark: ModuleType, seed: int) -> None:
    turns = list(benchmark.branching(seed, 1500))
    fewer = {}
    for budget in benchmark.BUDGETS:
        usual, ours = (benchmark.replay(turns, p, budget, 1 << 16) for p in benchmark.POLICIES.values())
        fewer[budget] = 1 - ours.recomputed / usual.recomputed
    assert min(fewer.values()) >= 0 and fewer[256] >= 1 / 3, fewer


def test_a_trace_of_blocks_becomes_conversations(benchmark: ModuleType, tmp_path: Path) -> None:
    rows = [
        '{"timestamp": 0, "input_length": 1700, "output_length": 200, "hash_ids": [0, 1, 2, 3]}',
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 9]}',
        '{"timestamp": 9, "input_length": 2100, "output_length": 300, "hash_ids": [0, 1, 2, 4, 5]}',
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows))
    first, other, later = benchmark.mooncake(path, 0)
    assert (len(first.prompt), len(first.answer), len(other.answer)) == (1700, 200, 65)
    assert [*first.prompt, *first.answer] == later.prompt[:1900] and len(later.prompt) == 2100
    assert (first.after, other.after, later.after) == (None, None, 0)
    assert other.prompt[:512] == first.prompt[:512] and other.prompt[512] != first.prompt[512]
