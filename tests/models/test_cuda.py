"""The reference operations on a GPU, in float32: the same tokens as transformers, in every family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.models import test_attention_only, test_hybrids, test_mamba2
from tests.models.conformance import MIXED, VARIANTS, Oracle, Tiny, assert_equal_to_oracle, serve

pytestmark = pytest.mark.gpu

MODELS: Mapping[str, Tiny] = {
    "mamba2": Tiny("Mamba2ForCausalLM", test_mamba2.MODELS["grouped"]),
    "qwen3": test_attention_only.MODELS["qwen3"],
    **test_hybrids.MODELS,
}
WAYS: Mapping[str, Mapping[str, Any]] = {**VARIANTS, **test_hybrids.DRAFTS}


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_transformers(name: str, tmp_path: Path) -> None:
    oracle = Oracle(MODELS[name], tmp_path)
    for way in ("whole", "all-at-once", "windows-of-5"):
        assert_equal_to_oracle(oracle, MIXED, serve(tmp_path, MIXED, device="cuda", **WAYS[way]))
