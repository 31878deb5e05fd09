"""The sanitizer in recorded steps: it finds what it finds elsewhere, and nothing where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.executor.fake_graphs import FakeGraph, fake_graphs
from tests.executor.test_graphs import interpreted, recording_runner

from holdfast import engine as engines
from holdfast.executor import runner
from holdfast.layers.short_conv import ShortConv
from holdfast.memory.recorded import RecordedChecks
from holdfast.memory.state_pool import Committed, StatePool
from holdfast.ops.step import StateStep
from holdfast.spec.drafter import Draft, VerifiedStep
from holdfast.spec.standalone import Standalone

from .fault import LFM2, MAMBA2, Ask, Fault, Scene, wrap
from .harness import Outcome, healthy, make_engine, run, weights
from .museum import FAULTS

__all__ = ["fake_graphs"]

SMALL = dict(max_num_seqs=2, fold_every=8)
SCENE = Scene(LFM2, (Ask(13, 8), Ask(5, 14), Ask(9, 9)), dict(backend="triton", **SMALL))
"""Lines are passed and pages begun while all decode, and a row has a second tenant."""
SHARED = (Ask(66, 24, shared=64), Ask(90, 20, shared=64, after=22), Ask(67, 20, shared=64, after=24))
WINDOWS = replace(SCENE, asks=(Ask(13, 8), Ask(5, 14)), drafts=2)
"""With a drafter that is the model itself, and is wrong in every third place."""
SCENES = {
    "lfm2": SCENE,
    "windows": WINDOWS,
    "shared": replace(SCENE, asks=SHARED),
    "mamba2": replace(SCENE, model=MAMBA2),
}
BY_NAME = {fault.name: fault for fault in FAULTS}
FOUND = {
    "next-lanes-slots": SCENE,
    "cursors-of-the-last-tenant": SCENE,
    "page-of-the-last-tenant": SCENE,
    "slot-of-the-step-before": SCENE,
    "slot-given-twice": SCENE,
    "token-a-place-early": SCENE,
    "checkpoint-given-away": SCENES["shared"],
    "state-by-number": SCENE,
    "rejected-tokens-kept": WINDOWS,
    "bonus-counted-twice": WINDOWS,
    "drafting-moves-cursors": WINDOWS,
    "draft-over-the-bonus": WINDOWS,
}
ON_GPU = ("bonus-counted-twice", "drafting-moves-cursors", "draft-over-the-bonus")
"""Only there: others are much like them."""


def plain(scene: Scene) -> Outcome:
    """By the reference's operations."""
    return healthy(replace(scene, options=SMALL))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, fake_graphs: list[FakeGraph]) -> list[int]:
    """Engines record; and how many steps were checked so."""
    settled: list[int] = []
    for name in (LFM2, MAMBA2):
        weights(name, "cpu")  # now, while engines do not record: these have the reference's operations
    for scene in SCENES.values():
        plain(scene)

    def counted(expect: Callable[..., Any]) -> Callable[..., Any]:
        def told(checks: RecordedChecks, work: Any, *stands: Any) -> None:
            settled.append(len(work))
            expect(checks, work, *stands)

        return told

    monkeypatch.setattr(engines, "Runner", recording_runner)
    monkeypatch.setattr(runner, "RECORDED", runner.RECORDED[:1])
    wrap(monkeypatch, RecordedChecks, "expect", counted)
    wrap(monkeypatch, Standalone, "propose", spoilt)  # before it is recorded
    return settled


def spoilt(propose: Callable[..., Draft]) -> Callable[..., Draft]:
    def told(drafter: Standalone, step: VerifiedStep) -> Draft:
        draft = propose(drafter, step)
        place = step.position[:, None] + torch.arange(step.depth, device=step.position.device)
        return replace(draft, tokens=torch.where(place % 3 == 0, draft.tokens ^ 1, draft.tokens))

    return told


@interpreted
@pytest.mark.parametrize(
    "name", ["lfm2", *(pytest.param(name, marks=pytest.mark.slow) for name in SCENES if name != "lfm2")]
)
def test_nothing_is_found_where_nothing_is_wrong(recorded: list[int], name: str) -> None:
    scene = SCENES[name]
    guarded = run(scene, "stamps")
    assert not guarded.findings and len(recorded) > 4
    assert all(map(len, guarded.tokens)) and guarded.tokens == plain(scene).tokens


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "scene"),
    [pytest.param(BY_NAME[name], scene, id=name) for name, scene in FOUND.items() if name not in ON_GPU],
)
def test_faults_are_found(
    recorded: list[int], monkeypatch: pytest.MonkeyPatch, fault: Fault, scene: Scene
) -> None:
    fault.plant(monkeypatch)
    assert run(scene, "stamps").findings and recorded


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize(("name", "scene"), [("blocks.2", SCENE), ("draft.blocks.2", WINDOWS)])
def test_a_layer_with_the_slots_of_others_is_named(
    recorded: list[int], monkeypatch: pytest.MonkeyPatch, name: str, scene: Scene
) -> None:
    """The other layers are given the right ones; and so is a drafter's, but for when it drafts."""

    def misled(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(layer: ShortConv, x: torch.Tensor, batch: Any) -> Any:
            if layer.name == name and batch.step.uniform and bool(batch.step.ahead) == bool(scene.drafts):
                rows = batch.step.rows.flip(0)
                batch = replace(
                    batch, step=replace(batch.step, rows=torch.where(batch.step.rows > 0, rows, 0))
                )
            return forward(layer, x, batch)

        return run

    wrap(monkeypatch, ShortConv, "forward", misled)
    found = run(scene, "stamps").findings
    assert found and {finding.layer for finding in found} == {name}


@interpreted
@pytest.mark.slow
def test_a_slot_that_was_not_filled_is_not_published(
    recorded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `published-before-the-fold`, which cannot be recorded."""

    def early(commit: Callable[..., Any]) -> Callable[..., Any]:
        def told(pool: StatePool, *, step: StateStep, accepted: torch.Tensor, **more: Any) -> Committed:
            granted = pool.cursors.grant_slot[step.rows] > 0
            result = commit(pool, step=step, accepted=accepted, **more)
            pool.cursors.grant_slot.index_fill_(0, step.rows, 0)
            return replace(result, used=result.used | granted)

        return told

    wrap(monkeypatch, StatePool, "commit", early)
    found = run(SCENES["shared"], "stamps").findings
    assert any(finding.what == "publish" and finding.layer.startswith("blocks.") for finding in found)


@interpreted
def test_a_step_has_four_launches_more(recorded: list[int], fake_graphs: list[FakeGraph]) -> None:
    """However many layers there are: for cursors, convolutions, pages, and what was accepted; and no copy."""
    length = {}
    for mode in ("off", "stamps"):
        fake_graphs.clear()
        make_engine(SCENE, mode)
        length[mode] = [len(graph.work) for graph in fake_graphs]
    added = [more - less for less, more in zip(length["off"], length["stamps"], strict=True)]
    assert added and added == [0, 4] * (len(added) // 2), "passes are as before"


@pytest.mark.gpu
@pytest.mark.parametrize("name", FOUND)
def test_faults_are_found_on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    wrap(monkeypatch, Standalone, "propose", spoilt)
    scene = replace(FOUND[name], options=SMALL | {"device": "cuda"})
    made = make_engine(scene, "stamps")
    assert len(made.runner.graphs) and not run(scene, "stamps").findings
    BY_NAME[name].plant(monkeypatch)
    assert run(scene, "stamps").findings
