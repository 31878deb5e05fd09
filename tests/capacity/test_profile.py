"""What steps take of a device, found out by doing the largest: here on one whose memory is made up."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.executor.fake_graphs import FakeGraph, fake_graphs

from holdfast import LLM, SamplingParams, start
from holdfast.blueprint import Blueprint
from holdfast.config import ConfigError, EngineConfig, Limits
from holdfast.engine import Engine, build_engine
from holdfast.executor.inputs import Shape, uniform_shapes
from holdfast.executor.largest import largest_steps
from holdfast.executor.profile import SEGMENTS, profile, smallest_pools
from holdfast.executor.readback import InFlight
from holdfast.executor.runner import Runner
from holdfast.memory.sizing import StepBytes
from holdfast.plan import StepPlan
from holdfast.request import Request

from .shapes import EVERY, LFM2, TINY, published, write

__all__ = ["fake_graphs"]

MIB, GIB = 1 << 20, 1 << 30
NGRAM: dict[str, Any] = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


class MadeUp:
    """A device's memory. What is taken stays reserved until it settles."""

    def __init__(self, device: object = None, *, free: int = 8 * GIB) -> None:
        self.allocated = self.reserved = self.peak = 0
        self._size = free

    def take(self, size: int, *, kept: int) -> None:
        self.reserved = max(self.reserved, self.allocated + size)
        self.peak = max(self.peak, self.reserved)
        self.allocated += kept

    def settle(self) -> int:
        self.reserved = self.peak = self.allocated
        return self.reserved

    @property
    def free(self) -> int:
        return self._size - self.reserved

    @property
    def available(self) -> int:
        return self._size


class Taking:
    """As much of a runner as is profiled: 7 MiB of libraries stay, a step works in 90, a recording of n lanes in n,
    of which it keeps a quarter."""

    def __init__(self, memory: MadeUp, shapes: Sequence[Shape] = ()) -> None:
        self._memory, self.shapes = memory, shapes

    def compile_ahead(self) -> None:
        self._memory.take(400 * MIB, kept=7 * MIB)

    def exert(self) -> None:
        self._memory.take(90 * MIB, kept=0)

    def record(self, shapes: Sequence[Shape]) -> None:
        for shape in shapes:
            self._memory.take(shape.lanes * MIB, kept=shape.lanes * MIB // 4)


# What is measured


def test_a_step_takes_what_it_works_in_and_what_libraries_keep() -> None:
    memory = MadeUp()
    memory.take(1000 * MIB, kept=1000 * MIB)  # weights
    taken = profile(cast(Runner, Taking(memory)), memory, records=False)
    assert taken == StepBytes((7 + 90) * MIB, 0)


def test_recordings_of_fewer_lanes_are_counted_by_those_of_the_most() -> None:
    memory, shapes = MadeUp(), [Shape(lanes, window) for lanes in (8, 16, 64) for window in (1, 3)]
    steps = profile(cast(Runner, Taking(memory, shapes)), memory, records=True)
    in_all = MadeUp()
    Taking(in_all).record(sorted(shapes, key=lambda shape: -shape.lanes))
    assert in_all.settle() <= steps.graphs == (2 * 16 + 2 * (16 + 8) // 4) * MIB + SEGMENTS


@given(
    rows=st.integers(1, 9),
    tokens=st.integers(1, 300),
    length=st.integers(2, 200),
    window=st.integers(1, 5),
    slots=st.integers(0, 4),
)
def test_steps_are_as_large_as_limits_allow(
    rows: int, tokens: int, length: int, window: int, slots: int
) -> None:
    limits = Limits(rows, tokens, length, 96, 16, 7, slots, 16, window)
    one, runs, windows = largest_steps(limits, window - 1)
    for plan in (one, runs, windows):
        assert len(plan.starts) == len(plan.work) == len({work.row for work in plan.work}) <= rows
        assert plan.num_tokens <= tokens and all(work.window.most_chosen <= work.tokens for work in plan.work)
        assert all(0 <= at < length - work.tokens for at, work in zip(plan.positions, plan.work, strict=True))
        assert {mapped.page for mapped in plan.pages} == {1} and {
            start.own_slot for start in plan.starts
        } <= {0, 1}
        assert all(mapped.ordinal < limits.pages_per_row for mapped in plan.pages)
    assert one.num_tokens == min(tokens, length - 1)
    assert runs.num_tokens + rows > min(tokens, len(runs.work) * (length - 1)), (
        "but for what a division leaves"
    )
    if window < length and window <= tokens:
        chosen = sum(work.window.most_chosen for work in windows.work)
        assert chosen == min(rows, tokens // window) * window


# What trying them leaves behind


@pytest.mark.parametrize("model", EVERY)
def test_pools_of_one_page_and_one_slot_are_enough(tmp_path: Path, model: str) -> None:
    sizes: dict[str, Any] = dict(max_num_seqs=3, max_model_len=150, max_num_batched_tokens=100)
    config = EngineConfig(load_format="dummy", **sizes, **NGRAM)
    blueprint = Blueprint(write(tmp_path / "model", EVERY[model]), config)
    limits = smallest_pools(blueprint.capacity.limits)
    runner = Runner(blueprint.build(), limits, torch.device("cpu"), depths=config.depths)
    runner.exert()
    pools = [part for layer in runner.kv.layers.values() for part in layer]
    pools += [saved for layer in runner.state.layers.values() for saved in layer.saved().values()]
    assert all(len(pool) == 2 and pool[1].any() and not pool[0].any() for pool in pools if pool.numel())
    assert not runner.tables.tokens[0].any(), "and padding stays what it is"


@pytest.mark.parametrize("options", [{}, NGRAM], ids=["plain", "drafts"])
@pytest.mark.parametrize("model", ["lfm2", "qwen3_5"])
def test_whoever_comes_later_finds_nothing_of_it(tmp_path: Path, model: str, options: dict[str, Any]) -> None:
    directory = write(tmp_path / "model", TINY[model])
    prompts = [[3, 1, 4, 1, 5] * 9, [2, 7, 1, 8], [6] * 70]
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=3, ignore_eos=True, logprobs=2)
    asked: dict[str, Any] = dict(load_format="dummy", max_num_seqs=2, max_num_batched_tokens=48, **options)
    fresh, tried = LLM(directory, **asked), LLM(directory, **asked)
    tried._engine.runner.exert()
    for _ in range(2):  # the second time from prefixes that were kept
        assert [o.logprobs for o in tried.generate(prompts, params)] == [
            o.logprobs for o in fresh.generate(prompts, params)
        ]


def test_no_more_than_two_steps_are_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of every second step go through the same memory: those before must have arrived."""
    runner = LLM(write(tmp_path / "model", LFM2), load_format="dummy", max_num_seqs=2)._engine.runner
    launch, told = runner.launch, list[str]()

    def launched(plan: StepPlan) -> InFlight:
        told.append(f"launch {plan.step}")
        step = launch(plan)
        wait = step.report.wait
        monkeypatch.setattr(step.report, "wait", lambda: (told.append(f"wait {plan.step}"), wait())[1])
        return step

    monkeypatch.setattr(runner, "launch", launched)
    runner.exert()
    assert told == ["launch 0", "launch 1", "wait 0", "launch 2", "wait 1", "wait 2"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted")
def test_what_was_tried_on_is_gone_at_once(tmp_path: Path, fake_graphs: list[FakeGraph]) -> None:
    """Its pools must make room for the real ones, and nobody collects garbage in between."""
    sizes = dict(max_num_seqs=1, max_model_len=32, max_num_batched_tokens=4)
    asked = EngineConfig(backend="triton", load_format="dummy", **sizes)
    blueprint = Blueprint(write(tmp_path / "model", LFM2), asked)
    limits = smallest_pools(blueprint.capacity.limits)
    runner = Runner(blueprint.build(), limits, torch.device("cpu"), shapes=uniform_shapes(limits, (0,)))
    profile(runner, MadeUp(), records=True)
    fake_graphs.clear()  # they replay what they were given, which a real one does not hold
    left = [weakref.ref(part) for part in (runner, runner.kv, runner.kv.table, runner.state, runner.inputs)]
    gc.disable()
    try:
        del runner
        assert [part() for part in left] == [None] * len(left)
    finally:
        gc.enable()


# The plan that follows


def blueprint(directory: Path, **options: Any) -> Blueprint:
    asked: dict[str, Any] = dict(device="cuda", dtype="bfloat16", memory="80GiB") | options
    return Blueprint(directory, EngineConfig(**asked))


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return write(tmp_path / "model", published("qwen3.5-4b"))


def test_what_steps_do_not_take_goes_to_the_pools(qwen: Path) -> None:
    estimated = blueprint(qwen).capacity
    steps = StepBytes(300 * MIB, 200 * MIB)
    plan = blueprint(qwen).measured(steps, 100 * GIB)
    assert (plan.parts.activations, plan.parts.graphs) == (300 * MIB, 200 * MIB)
    spared = estimated.parts.activations + estimated.parts.graphs - 500 * MIB
    more = plan.limits.num_pages - estimated.limits.num_pages
    assert abs(spared - more * plan.units.kv_page) < plan.units.kv_page
    assert blueprint(qwen).at_most.limits.num_pages > plan.limits.num_pages


def test_how_it_is_known_is_told(qwen: Path) -> None:
    planned = blueprint(qwen)
    plan = planned.measured(StepBytes(300 * MIB, 200 * MIB), 100 * GIB)
    assert "activations  300.0 MiB  measured, 2,048 tokens a step" in plan.render()
    assert "graphs       200.0 MiB  measured, recorded steps of up to 64 requests" in plan.render()
    assert "an estimate, 2,048 tokens a step" in planned.capacity.render()
    assert (plan.as_dict()["steps"], planned.capacity.as_dict()["steps"]) == ("measured", "an estimate")


def test_without_memory_given_it_is_nine_tenths_of_what_is_there_by_then(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.blueprint.available_bytes", lambda device: 80 * GIB)
    plan = blueprint(qwen, memory=None).measured(StepBytes(GIB, GIB), 60 * GIB)
    assert 0 <= 54 * GIB - plan.parts.total < plan.units.kv_page


def test_the_model_has_no_fewer_positions_than_requests(qwen: Path) -> None:
    planned = blueprint(qwen, memory="12GiB", max_num_seqs=4)
    longest = planned.at_most.limits.max_model_len
    assert longest < 262_144
    for taken in (0, 100 * MIB, GIB):
        assert planned.measured(StepBytes(taken, 0), 100 * GIB).limits.max_model_len <= longest


def test_too_little_is_refused_with_what_steps_take(qwen: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        blueprint(qwen, memory="12GiB").measured(StepBytes(4 * GIB, GIB), 100 * GIB)
    told = str(refused.value)
    assert "weights take 7.83 GiB" in told and "of which 5.00 GiB for steps to work in (measured)" in told
    assert "lower max_num_seqs or max_num_batched_tokens" in told


def test_more_than_the_device_has_is_refused(qwen: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory='80GiB' is more than cuda has to give, 70\.00 GiB: "):
        blueprint(qwen).measured(StepBytes(GIB, GIB), 70 * GIB)


# A start


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Of an engine that takes this machine for a device that can be asked."""
    monkeypatch.setattr(Blueprint, "measures", True)
    monkeypatch.setattr(start, "GpuMemory", MadeUp)
    directory = write(tmp_path / "model", TINY["qwen3_5"])

    def build(**options: Any) -> Engine:
        return build_engine(directory, EngineConfig(load_format="dummy", memory="64MiB", **options))

    return build


def test_pools_are_sized_by_what_was_measured(
    begin: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start, "profile", lambda *args, **options: StepBytes(9 * MIB, 2 * MIB))
    monkeypatch.setattr(Blueprint, "records", True)
    with caplog.at_level(logging.INFO, logger="holdfast"):
        built = begin(max_num_seqs=4)
    assert (built.capacity.parts.activations, built.capacity.parts.graphs) == (9 * MIB, 2 * MIB)
    assert built.runner.kv.nbytes == built.capacity.parts.kv
    assert [record.message for record in caplog.records] == [
        built.capacity.render(),
        "recorded steps took 0 B of the 2.00 MiB planned; 8.00 GiB are left",
    ]
    built.submit(Request("one", (1,) * 40, SamplingParams(max_tokens=5, ignore_eos=True)))
    while built.has_work:
        built.step()


def test_recordings_that_take_more_than_planned_are_told(
    begin: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MadeUp()
    monkeypatch.setattr(start, "GpuMemory", lambda device: memory)
    monkeypatch.setattr(start, "profile", lambda *args, **options: StepBytes(9 * MIB, 2 * MIB))
    monkeypatch.setattr(Blueprint, "records", True)
    monkeypatch.setattr(Runner, "record", lambda runner: memory.take(3 * MIB, kept=3 * MIB))
    begin(max_num_seqs=4)
    assert caplog.messages == [
        "recorded steps took 3.00 MiB, though 2.00 MiB were planned; 8.00 GiB are left"
    ]


def short(*args: object, **options: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_memory_that_runs_out_while_steps_are_tried_is_explained(
    begin: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "exert", short)
    with pytest.raises(ConfigError, match="while it was measured what steps take") as refused:
        begin()
    told = str(refused.value)
    assert "Lower max_num_batched_tokens, max_num_seqs or max_model_len" in told
    assert "weights" in told and "not measured yet" in told and "Tried to allocate 2.00 GiB" in told


def test_memory_that_runs_out_after_that_is_explained_by_the_measured_plan(
    begin: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "profile", lambda *args, **options: StepBytes(9 * MIB, 2 * MIB))
    monkeypatch.setattr(Runner, "exert", short)
    with pytest.raises(ConfigError, match="were planned to fit: somebody else may have taken") as refused:
        begin()
    assert "9.00 MiB  measured, 2,048 tokens a step" in str(refused.value)
