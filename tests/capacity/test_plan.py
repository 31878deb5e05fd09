"""Is what the plan says true of the engine that follows it?"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import LLM, engine
from holdfast.blueprint import Blueprint
from holdfast.config import ConfigError, EngineConfig, Limits
from holdfast.engine import Engine, build_engine
from holdfast.executor.readback import InFlight
from holdfast.memory.capacity import CapacityPlan
from holdfast.plan import StepPlan
from holdfast.request import Request, SamplingParams

from .shapes import TINY, published, write


def plan(directory: Path, **options: Any) -> CapacityPlan:
    return Blueprint(directory, EngineConfig(**options)).capacity


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    return write(tmp_path / "hybrid", TINY["qwen3_5"])


# How many fit


def most_at_once(engine: Engine, count: int, prompt: int, answer: int) -> int:
    seen, launch = 0, engine.runner.launch

    def watch(step: StepPlan) -> InFlight:
        nonlocal seen
        seen = max(seen, engine.scheduler.num_running)
        return launch(step)

    engine.runner.launch = watch  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=answer, ignore_eos=True)
    for number in range(count):
        engine.submit(Request(f"{number}", (1,) * prompt, params))
    while engine.has_work:
        engine.step()
    return seen


SHORT = {"max_model_len": 32, "page_size": 16}
BOUND = {
    "rows": {"max_num_seqs": 3},
    "slots": {"max_num_seqs": 5, "num_slots": 2},
    "pages": {"max_num_seqs": 5, "num_pages": 9},
    "pages-exactly": {"max_num_seqs": 5, "num_pages": 8},
    "drafts": {
        "max_num_seqs": 5,
        "num_pages": 9,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    },
}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("binds", BOUND)
def test_as_many_requests_fit_as_it_says(hybrid: Path, binds: str, overlap: bool) -> None:
    options = SHORT | {"load_format": "dummy", "overlap": overlap} | BOUND[binds]

    def engine() -> Engine:
        return build_engine(hybrid, EngineConfig(**options))

    [fit] = engine().capacity.fits
    assert fit.length == 32
    for answer in (1, 12, 31):
        running = engine()
        assert most_at_once(running, fit.requests, 32 - answer, answer) == fit.requests
        assert running.scheduler.counters.preempted == 0
    if binds != "drafts":  # which need their room only when they are made
        assert most_at_once(engine(), fit.requests + 1, 31, 1) == fit.requests, "and no more"


@pytest.mark.parametrize("binds", [name for name in BOUND if name != "drafts"])
def test_the_option_it_names_is_the_one_that_helps(hybrid: Path, binds: str) -> None:
    options = SHORT | BOUND[binds]
    [before] = plan(hybrid, **options).fits
    assert before.binds == binds.partition("-")[0] and before.option in before.change
    [after] = plan(hybrid, **options | {before.option: 2 * options[before.option]}).fits
    assert after.requests > before.requests


@pytest.mark.parametrize("rows", [4, 64])
def test_more_memory_helps_where_memory_is_named(tmp_path: Path, rows: int) -> None:
    directory = write(tmp_path / "model", published("qwen3.5-4b"))
    options = {"dtype": "bfloat16", "max_num_seqs": rows, "max_model_len": 100_000}
    before, after = (plan(directory, memory=memory, **options) for memory in ("14GiB", "80GiB"))
    named = [(b, a) for b, a in zip(before.fits, after.fits, strict=True) if b.option == "memory"]
    assert named and all(a.requests > b.requests for b, a in named)


def test_both_lengths_are_told(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", published("lfm2-1.2b"))
    assert [fit.length for fit in plan(directory, memory="80GiB").fits] == [2048, 128_000]
    assert [fit.length for fit in plan(directory, memory="80GiB", max_model_len=300).fits] == [300]


# Nothing is capped in silence


def test_nothing_to_note(hybrid: Path) -> None:
    assert plan(hybrid, memory="1GiB").notes == ()


def test_a_shortened_context_is_noted_and_the_advice_holds(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", published("lfm2-1.2b"))
    capacity = plan(directory, memory="3GiB", dtype="bfloat16", max_num_seqs=4)
    length = capacity.limits.max_model_len
    [note] = capacity.notes
    assert length < 128_000 and note.startswith(f"max_model_len is {length:,}, though the model has 128,000")
    memory = note.partition("memory='")[2].rstrip("'")
    assert plan(directory, memory=memory, dtype="bfloat16", max_num_seqs=4).limits.max_model_len == 128_000


def test_a_context_shortened_by_num_pages_is_noted(hybrid: Path) -> None:
    [note] = plan(hybrid, num_pages=4).notes
    assert "max_model_len is 255, though the model has 512 positions" in note and "num_pages=9" in note
    assert plan(hybrid, num_pages=9).notes == ()


def test_fewer_slots_than_rows_are_noted(hybrid: Path) -> None:
    [note] = plan(hybrid, num_slots=2, max_num_seqs=5).notes
    assert note.startswith("2 of max_num_seqs=5 requests run at once, for lack of slots; raise num_slots")


def test_an_option_without_effect_is_noted(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", TINY["llama"])
    assert plan(directory, num_slots=8).notes == (
        "num_slots=8 has no effect: the model has no recurrent state",
    )


def test_a_model_without_positions(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", TINY["mamba2"])
    [note] = plan(directory, max_num_seqs=2).notes
    assert "the model itself has no bound" in note
    assert plan(directory, max_num_seqs=2, max_model_len=1 << 20).notes == ()


# How it is told


def test_told_to_people(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", published("qwen3.5-4b"))
    text = plan(directory, memory="80GiB", dtype="bfloat16", device="cuda").render()
    for figure in (
        "Capacity on cuda, bfloat16, recurrent state float32",
        "weights       7.83 GiB",
        "320 slots of 49.12 MiB, 256 of them to keep prefixes",
        "64 rows of 9.89 MiB; a further draft token adds 1.69 MiB",
        "total        80.00 GiB  of 80.00 GiB",
        "requests of 2,048 tokens: 64 at once; rows bind first: raise max_num_seqs",
        "requests of 262,144 tokens: 6 at once; pages bind first: raise memory (8.00 GiB each)",
    ):
        assert figure in text
    assert max(map(len, text.splitlines())) < 110


def test_memory_that_is_not_needed_is_left(hybrid: Path) -> None:
    capacity = plan(hybrid, memory="1GiB", max_num_seqs=2)
    assert capacity.parts.total < 100 << 20
    assert "of 1.00 GiB: more is of no use with these limits" in capacity.render()


def test_told_to_programs(hybrid: Path) -> None:
    capacity = plan(hybrid, num_slots=2, max_num_seqs=5)
    told = json.loads(json.dumps(capacity.as_dict()))
    assert Limits(**told["limits"]) == capacity.limits
    assert EngineConfig(**told["options"]) == capacity.config
    assert told["bytes"]["total"] == sum(size for name, size in told["bytes"].items() if name != "total")
    assert told["bytes_per"]["kv_page"] == capacity.units.kv_page
    assert told["kv_tokens"] == 64 * capacity.limits.num_pages
    assert [fit["requests"] for fit in told["fits"]] == [2]
    assert told["notes"] == list(capacity.notes)


def test_the_engine_tells_it_at_start(hybrid: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        llm = LLM(hybrid, load_format="dummy", num_slots=2, max_num_seqs=5)
    told = [(record.levelname, record.message) for record in caplog.records]
    assert told == [("INFO", llm.capacity.render()), ("WARNING", llm.capacity.notes[0])]


def test_recorded_steps_are_planned_for(tmp_path: Path) -> None:
    directory = write(tmp_path / "model", published("qwen3.5-4b"))
    options = dict(memory="80GiB", dtype="bfloat16", device="cuda")
    recorded, eager = plan(directory, **options), plan(directory, **options, eager=True)
    assert recorded.parts.graphs >= 64 * 248_320 * 2 and not eager.parts.graphs  # logits of 64 requests
    assert recorded.limits.num_pages < eager.limits.num_pages
    assert "graphs" in recorded.render() and "graphs" not in eager.render()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2.00 GiB"),
    ],
)
def test_memory_that_runs_out_at_start_is_explained(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def short(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(engine, "Runner", short)
    with pytest.raises(ConfigError, match="lower max_num_batched_tokens or max_num_seqs") as refused:
        LLM(hybrid, load_format="dummy", memory="64MiB")
    told = str(refused.value)
    assert (
        plan(hybrid, memory="64MiB").render().splitlines()[-2] in told and "ried to allocate 2.00 GiB" in told
    )


def test_other_errors_at_start_stay_what_they_are(hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(engine, "Runner", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        LLM(hybrid, load_format="dummy", memory="64MiB")


def test_the_weights_are_not_read_to_find_that_memory_is_short(hybrid: Path) -> None:
    with pytest.raises(ConfigError, match=r"give memory='\d+MiB'"):
        LLM(hybrid, memory="100KB")  # the directory has no weights, and nobody noticed
