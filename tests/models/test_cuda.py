"""The reference operations on a GPU, in float32: the same tokens as transformers, in every family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.models import (
    test_attention_only,
    test_experts,
    test_hybrids,
    test_kimi_linear,
    test_mamba1,
    test_mamba2,
    test_mamba2_hybrids,
    test_minimax,
    test_olmo_hybrid,
    test_zamba2,
)
from tests.models.conformance import MIXED, VARIANTS, Oracle, Tiny, assert_equal_to_oracle, serve

pytestmark = pytest.mark.gpu

MODELS: Mapping[str, Tiny] = {
    "mamba2": Tiny("Mamba2ForCausalLM", test_mamba2.MODELS["grouped"]),
    "qwen3": test_attention_only.MODELS["qwen3"],
    **test_hybrids.MODELS,
    **{name: test_experts.MODELS[name] for name in test_experts.FAMILIES},
    **{name: test_mamba2_hybrids.MODELS[name] for name in test_mamba2_hybrids.FAMILIES},
    **{name: test_mamba1.MODELS[name] for name in test_mamba1.FAMILIES},
    "kimi_linear": test_kimi_linear.MODELS["kimi_linear"],
    "minimax": test_minimax.MODELS["minimax"],
    "olmo_hybrid": test_olmo_hybrid.MODELS["olmo_hybrid"],
    "zamba2": test_zamba2.MODELS["zamba2"],
}
WAYS: Mapping[str, Mapping[str, Any]] = {**VARIANTS, **test_hybrids.DRAFTS}


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_transformers(name: str, tmp_path: Path) -> None:
    oracle = Oracle(MODELS[name], tmp_path)
    for way in ("whole", "all-at-once", "windows-of-5"):
        assert_equal_to_oracle(oracle, MIXED, serve(tmp_path, MIXED, device="cuda", **WAYS[way]))
