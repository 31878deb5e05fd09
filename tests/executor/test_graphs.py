"""Recorded work: replayed on whatever its inputs hold by then, and equal to the same work done step by step."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.fake_graphs import FakeGraph, fake_graphs
from tests.models.conformance import Oracle, Tiny, assert_equal_to_oracle, prompts
from tests.models.test_cuda import MODELS
from tests.models.test_hybrids import lfm2, qwen3_5

from holdfast import LLM, SamplingParams, engine
from holdfast.blueprint import Blueprint
from holdfast.config import EngineConfig
from holdfast.executor import runner
from holdfast.executor.graphs import Graphs
from holdfast.executor.inputs import uniform_shapes
from holdfast.executor.runner import Runner

__all__ = ["fake_graphs"]

GIVEN = prompts(19, 3, seed=2)
ANSWER = 16
DELTA = qwen3_5("da", linear_key_head_dim=16, linear_value_head_dim=16)
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted")


def test_a_replay_reads_what_the_inputs_hold_by_then(fake_graphs: list[FakeGraph]) -> None:
    graphs, x, sums = Graphs(), torch.ones(3), torch.zeros(3)
    graphs.record("double", lambda: (2 * x).view(3, 1))
    graphs.record("add", lambda: sums.add_(x))
    assert len(graphs) == 2 and sums.tolist() == [3, 3, 3], (
        "done once before it is recorded, and replayed once"
    )
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    first = graphs.run("double", lambda: pytest.fail("this was recorded"))
    assert first.tolist() == [[2], [4], [6]]
    graphs.run("add", lambda: pytest.fail("this was recorded"))
    assert sums.tolist() == [4, 5, 6]
    x.zero_()
    assert graphs.run("double", lambda: pytest.fail("this was recorded")) is first and not first.any()


def test_what_was_not_recorded_is_done_now(fake_graphs: list[FakeGraph]) -> None:
    graphs = Graphs()
    assert graphs.run("never", lambda: 7) == 7 and not fake_graphs


def test_recordings_share_their_memory(fake_graphs: list[FakeGraph]) -> None:
    graphs = Graphs()
    for key in range(3):
        graphs.record(key, lambda: torch.zeros(1))
    assert [graph.pool() is fake_graphs[0] for graph in fake_graphs] == [True, True, True]


def test_a_recording_cannot_ask_the_device(fake_graphs: list[FakeGraph]) -> None:
    with pytest.raises(RuntimeError, match="waits for the device"):
        Graphs().record("asks", lambda: int(torch.ones(1)))


@interpreted
@pytest.mark.parametrize(
    ("tiny", "options"),
    [
        pytest.param(lfm2("ca"), {}, id="lfm2"),
        pytest.param(DELTA, {}, id="qwen3_5", marks=pytest.mark.slow),
        pytest.param(
            lfm2("ca"),
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            id="lfm2-windows-of-3",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_recorded_steps_equal_transformers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake_graphs: list[FakeGraph],
    tiny: Tiny,
    options: dict[str, Any],
) -> None:
    """With log-probabilities the model's pass is replayed, without them the choice of tokens as well."""
    oracle = Oracle(tiny, tmp_path)
    drawn = SamplingParams(max_tokens=ANSWER, temperature=0.9, top_p=0.8, seed=5, ignore_eos=True)
    expected = LLM(tmp_path, max_num_seqs=2, max_model_len=64).generate(GIVEN, drawn)
    monkeypatch.setattr(engine, "Runner", recording_runner)
    llm = LLM(tmp_path, backend="triton", max_num_seqs=2, max_model_len=64, **options)
    asked: dict[str, Any] = dict(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    scored = llm.generate(GIVEN, SamplingParams(**asked, logprobs=2))
    assert_equal_to_oracle(oracle, GIVEN, scored)
    assert replays(llm, "pass") and not replays(llm, "end")
    plain = llm.generate(GIVEN, SamplingParams(**asked))
    assert [output.token_ids for output in plain] == [output.token_ids for output in scored]
    ended = replays(llm, "end")
    assert ended
    assert [output.token_ids for output in llm.generate(GIVEN, drawn)] == [o.token_ids for o in expected]
    assert replays(llm, "end") > ended


@interpreted
@pytest.mark.parametrize(("key_dim", "recordable"), [(8, False), (16, True), (24, False), (32, True)])
def test_layers_that_wait_for_the_device_are_not_recorded(
    tmp_path: Path, fake_graphs: list[FakeGraph], key_dim: int, recordable: bool
) -> None:
    qwen3_5("d", linear_key_head_dim=key_dim).build().save_pretrained(tmp_path)
    blueprint = Blueprint(tmp_path, EngineConfig(backend="triton", max_num_seqs=1, max_model_len=32))
    ensemble = blueprint.build()
    assert ensemble.model.recordable is recordable
    recording = recording_runner(ensemble, blueprint.capacity.limits, torch.device("cpu"))
    with nullcontext() if recordable else pytest.raises(RuntimeError, match="waits for the device"):
        recording.record()


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_family_waits_for_the_device(tmp_path: Path, fake_graphs: list[FakeGraph], name: str) -> None:
    """In a step of single tokens, and of windows."""
    options = MODELS[name].options
    wide = {"linear_key_head_dim": 16} if "linear_key_head_dim" in options else {}
    replace(MODELS[name], options={**options, **wide}).build().save_pretrained(tmp_path)
    drafting = {"method": "ngram", "num_speculative_tokens": 2}
    asked = EngineConfig(backend="triton", max_num_seqs=1, max_model_len=32, speculative_config=drafting)
    blueprint = Blueprint(tmp_path, asked)
    ensemble = blueprint.build()
    assert ensemble.model.recordable
    recording_runner(ensemble, blueprint.capacity.limits, torch.device("cpu")).record()
    assert len(fake_graphs) == 2 * (1 + len(runner.RECORDED))


def recording_runner(ensemble: Any, limits: Any, device: torch.device, **options: Any) -> Runner:
    """As if the device were one that records."""
    return Runner(
        ensemble, limits, device, **{**options, "shapes": uniform_shapes(limits, (0, limits.max_drafts))}
    )


def replays(llm: LLM, part: str) -> int:
    """After each was replayed when it was recorded, and each pass once more to record its end."""
    recorded = llm._engine.runner.graphs._recorded
    graphs = [recording.graph for key, recording in recorded.items() if key[0] == part]
    return sum(graph.replays - 1 - (part == "pass") for graph in graphs)
