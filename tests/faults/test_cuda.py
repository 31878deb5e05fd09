"""The sanitizer on a CUDA device: stamps, poison and recomputation lie there too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .fault import LFM2, MIXED, QWEN, TREES, Fault, Scene
from .harness import run
from .museum import FAULTS

ON_CUDA = Scene(asks=MIXED, options=dict(device="cuda"))
SOME = (
    "neighbours-slot",
    "count-for-step",
    "page-of-the-last-tenant",
    "transposed-between-chunks",
    "path-not-moved",
    "keys-of-the-path-not-moved",
    "node-turned-by-its-place",
)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [QWEN, LFM2])
@pytest.mark.parametrize("mode", ["stamps", "full"])
def test_nothing_is_found_where_nothing_is_wrong(model: str, mode: str) -> None:
    scene = replace(ON_CUDA, model=model)
    guarded = run(scene, mode)
    assert not guarded.findings
    assert guarded.tokens == run(scene).tokens


@pytest.mark.gpu
@pytest.mark.parametrize("model", [QWEN, LFM2])
def test_nothing_is_found_in_windows_that_branch(model: str) -> None:
    scene = replace(TREES, model=model, options=dict(device="cuda"))
    guarded = run(scene, "full")
    assert not guarded.findings
    assert guarded.tokens == run(replace(scene, drafts=0)).tokens


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name in SOME], ids=lambda fault: fault.name)
def test_faults_are_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    scene = replace(fault.scene, options={**fault.scene.options, "device": "cuda"})
    assert run(scene, fault.caught_by).findings
