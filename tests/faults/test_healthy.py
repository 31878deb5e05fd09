"""A healthy engine, served in every way: nothing is found, and no token changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.config import SpeculativeConfig

from .fault import LFM2, MAMBA2, MIXED, QWEN, QWEN3, TREES, Ask, Scene
from .harness import healthy, run

SHARED = (
    Ask(90, 40, shared=64),
    Ask(80, 20, shared=64, after=3),
    Ask(66, 60, shared=64, after=5, cancelled=30),
    Ask(140, 20, shared=128, after=10),
    Ask(131, 30, shared=128, after=40),
    Ask(64, 10, shared=64, after=45),
    *MIXED,
)
WAYS: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "no-overlap": dict(overlap=False),
    "no-reuse": dict(enable_prefix_caching=False),
    "pre-empted": dict(num_pages=20),
    "few-slots": dict(num_slots=5),
    "windows": dict(speculative_config=SpeculativeConfig("ngram", 4), max_num_batched_tokens=5),
    "large-pages": dict(page_size=64, num_pages=24),
    "small-steps": dict(max_num_batched_tokens=33),
    "exact": dict(exact=True, max_num_batched_tokens=33),
    "opposite-axis-order": dict(backend="reference_kv"),
    "bfloat16-state": dict(state_dtype="bfloat16"),
    "byte-state": dict(state_dtype="int8"),
}
DRAFTED: Mapping[str, Mapping[str, Any]] = {
    "trees": dict(drafts=3, drafter="tree"),
    "several-heads": dict(drafts=3, drafter="eagle_multi"),
    "blocks": dict(drafts=4, drafter="dflash", depths=(0, 2, 4)),
}
WAYS |= {way: dict(num_pages=26) for way in DRAFTED}
EVERY_DAY = {
    (QWEN, "plain"),
    (QWEN, "pre-empted"),
    (LFM2, "few-slots"),
    (QWEN3, "small-steps"),
    (MAMBA2, "plain"),
    (LFM2, "trees"),
    (LFM2, "blocks"),
}


def cases() -> list[Any]:
    def case(model: str, way: str) -> Any:
        marks = () if (model, way) in EVERY_DAY else pytest.mark.slow
        return pytest.param(model, way, id=f"{model}-{way}", marks=marks)

    return [
        case(model, way)
        for model in (QWEN, LFM2, QWEN3, MAMBA2)
        for way in WAYS
        if (model, way) != (MAMBA2, "byte-state")  # which refuses it
    ]


@pytest.mark.parametrize(("model", "way"), cases())
def test_nothing_is_found(model: str, way: str) -> None:
    scene = Scene(model, SHARED, WAYS[way], **DRAFTED.get(way, {}))
    guarded = healthy(scene, "full")
    assert not guarded.findings, guarded.findings
    assert guarded.tokens == healthy(scene).tokens


@pytest.mark.slow
def test_windows_that_branch_in_triton() -> None:
    pytest.importorskip("triton")
    scene = replace(TREES, asks=(Ask(20, 16), Ask(9, 12)))  # interpreted, all of it would take minutes
    guarded = run(replace(scene, options=dict(backend="triton")), "full")
    assert not guarded.findings
    assert guarded.tokens == run(scene).tokens
