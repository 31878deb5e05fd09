"""Drafters under recorded graphs: the answers of no speculation, and the drafts that the reference makes.

Answers would be right whatever was drafted, so the drafts are compared as well. They would tell of a replay that
reads what an earlier step left behind: depths change, rows join and leave, and one of them draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.fake_graphs import FakeGraph, fake_graphs
from tests.executor.test_graphs import DELTA, interpreted
from tests.host.restless import Lulls
from tests.models.conformance import Tiny, prompts, slow_but
from tests.models.test_hybrids import lfm2
from tests.spec.formats import Target, write_dflash, write_eagle1, write_eagle3, write_mtp

from holdfast import LLM, SamplingParams, engine
from holdfast.executor.backlog import Backlog
from holdfast.executor.runner import Runner
from holdfast.plan import StepPlan

__all__ = ["fake_graphs"]

GIVEN = prompts(13, 3, 20, seed=3)
LONG = prompts(121, 96, 110, seed=3)
"""In these most tokens have occurred before."""
LENGTHS = (12, 7, 5)
DEPTHS = (0, 1, 2)
LULLS = (1, 2, 0, 0, 0, 2, 0, 1, 1, 0, 0)
LONG_LENGTHS, LONG_LULLS = (60, 45, 20), (1, 2, *[0] * 26)
"""In which grants are passed."""
OPTIONS: dict[str, Any] = dict(max_num_seqs=2, max_model_len=40, page_size=16, max_num_batched_tokens=24)
CONVOLUTION = lfm2("ca")

Seen = list[tuple[list[int], list[int]]]
"""Texts, and the drafts that follow them."""


def _heads(target: Path, made: Path) -> Path:
    made.mkdir()
    for number in range(max(DEPTHS)):
        write_eagle1(Target.of(target), made / str(number), seed=number)
    return made


DRAFTERS: dict[str, tuple[Tiny, dict[str, Any], Callable[[Path, Path], Path] | None]] = {
    "ngram": (CONVOLUTION, {"method": "ngram", "prompt_lookup_min": 1}, None),
    "mtp": (DELTA, {"method": "mtp"}, None),
    "eagle1": (CONVOLUTION, {"method": "eagle"}, lambda at, made: write_eagle1(Target.of(at), made)),
    "eagle3": (CONVOLUTION, {"method": "eagle"}, lambda at, made: write_eagle3(Target.of(at), made)),
    "eagle_multi": (CONVOLUTION, {"method": "eagle_multi"}, _heads),
    "dflash": (CONVOLUTION, {"method": "dflash"}, lambda at, made: write_dflash(Target.of(at), made)),
    "standalone": (CONVOLUTION, {"method": "standalone"}, lambda at, made: at),
    "standalone-delta": (DELTA, {"method": "standalone"}, lambda at, made: at),
}
"""The model, the config, and who writes the drafter's files."""


def write_drafter(name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """And its model: where that is, and how the drafter is asked for."""
    tiny, config, write = DRAFTERS[name]
    model, made = directory / "model", directory / "drafter"
    tiny.build().save_pretrained(model)
    if name == "mtp":
        return write_mtp(model, made), config
    return model, config if write is None else {**config, "model": str(write(model, made))}


@interpreted
@pytest.mark.parametrize("name", slow_but(["eagle3"], DRAFTERS))
def test_recorded_drafts_are_those_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_graphs: list[FakeGraph], name: str
) -> None:
    model, config = write_drafter(name, tmp_path)
    options, given = (OPTIONS, GIVEN) if name != "ngram" else (OPTIONS | {"max_model_len": 144}, LONG)
    _compare(monkeypatch, fake_graphs, model, config, options, given, LENGTHS, LULLS)


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("name", ["eagle_multi", "standalone-delta"])
def test_recorded_catch_ups_pass_lines_and_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_graphs: list[FakeGraph], name: str
) -> None:
    model, config = write_drafter(name, tmp_path)
    options = OPTIONS | dict(max_model_len=96, page_size=32, max_num_batched_tokens=40)
    passes = list[int]()
    clear = Backlog.clear
    monkeypatch.setattr(Backlog, "clear", lambda backlog: (passes.append(backlog.passes), clear(backlog)))
    _compare(monkeypatch, fake_graphs, model, config, options, GIVEN, LONG_LENGTHS, LONG_LULLS)
    assert set(passes) == {1, 2}


def _compare(
    monkeypatch: pytest.MonkeyPatch,
    fake_graphs: list[FakeGraph],
    model: Path,
    config: dict[str, Any],
    options: dict[str, Any],
    given: list[list[int]],
    lengths: Sequence[int],
    lulls: Sequence[int],
) -> None:
    speculating = {
        "speculative_config": {**config, "num_speculative_tokens": 1, "adaptive": {"candidate_steps": DEPTHS}}
    }
    plain = _answers(LLM(model, **options), given, lengths)
    llm, wanted = _watched(LLM(model, **options, **speculating), lulls)
    assert _answers(llm, given, lengths) == plain
    monkeypatch.setattr(engine, "Runner", _recording_runner)
    llm, seen = _watched(LLM(model, backend="triton", **options, **speculating), lulls)
    kinds, plans = dict(zip(llm._engine.runner.graphs._recorded, fake_graphs, strict=True)), list[StepPlan]()
    _note_plans(llm, plans)
    before = {key: graph.replays for key, graph in kinds.items()}
    assert _answers(llm, given, lengths) == plain
    assert seen == wanted and sum(len(drafts) for _, drafts in seen) >= 5
    replayed = {key[0] for key, graph in kinds.items() if graph.replays > before[key]}
    drafted = sum(graph.replays - before[key] for key, graph in kinds.items() if key[0] == "draft")
    assert drafted == sum(plan.propose > 0 and any(w.sample for w in plan.work) for plan in plans), (
        "after prompts as well"
    )
    patient = llm._engine.runner.backlog.patience > 0
    assert replayed == {"pass", "end", "draft"} | ({"catch up"} if patient else set())


def _answers(llm: LLM, given: list[list[int]], lengths: Sequence[int]) -> list[tuple[int, ...]]:
    """Of requests that end at different times; the last, which joins when one has ended, draws."""
    params = [
        SamplingParams(max_tokens=n, temperature=float(i == 2), seed=5, ignore_eos=True)
        for i, n in enumerate(lengths)
    ]
    return [tuple(output.token_ids) for output in llm.generate(given, params)]


def _watched(llm: LLM, lulls: Sequence[int]) -> tuple[LLM, Seen]:
    """An engine whose depth changes, and what its drafter leaves in the rows' tables."""
    llm._engine.scheduler._depth = Lulls(lulls)
    runner, seen = llm._engine.runner, list[tuple[list[int], list[int]]]()
    launch = runner.launch

    def watch(plan: Any) -> Any:
        flight = launch(plan)
        tables, cursors = runner.tables, runner.state.cursors
        for work in plan.work if plan.propose else ():
            at, count = int(cursors.base[work.row] + cursors.length[work.row]), int(tables.drafts[work.row])
            text = tables.tokens[work.row, : at + 1 + count].tolist()
            seen.append((text[: at + 1], text[at + 1 :]))
        return flight

    runner.launch = watch  # type: ignore[method-assign]
    return llm, seen


def _note_plans(llm: LLM, plans: list[StepPlan]) -> None:
    launch = llm._engine.runner.launch

    def note(plan: StepPlan) -> Any:
        plans.append(plan)
        return launch(plan)

    llm._engine.runner.launch = note  # type: ignore[method-assign]


def _recording_runner(ensemble: Any, limits: Any, device: torch.device, **options: Any) -> Runner:
    """As if the device were one that records."""
    assert ensemble.recordable
    shapes = engine.uniform_shapes(limits, options["depths"])
    return Runner(ensemble, limits, device, **{**options, "shapes": shapes})
