"""The Triton backend under whole models, in its interpreter where there is no GPU: equal to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.conformance import Oracle, Tiny, assert_equal_to_oracle, prompts, serve
from tests.models.test_hybrids import lfm2, qwen3_5

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GIVEN = prompts(27, 3, seed=2)
DRAFTING: dict[str, Any] = dict(speculative_config=dict(method="ngram", num_speculative_tokens=3))
KEYS: dict[str, Any] = dict(linear_key_head_dim=16, linear_value_head_dim=16)


@pytest.mark.parametrize(
    ("tiny", "options"),
    [
        pytest.param(lfm2("ca"), {}, id="lfm2", marks=pytest.mark.slow),
        pytest.param(lfm2("ca"), DRAFTING, id="lfm2-drafting", marks=pytest.mark.slow),
        pytest.param(qwen3_5("da", **KEYS), {}, id="qwen3_5"),
        pytest.param(qwen3_5("da", **KEYS), DRAFTING, id="qwen3_5-drafting", marks=pytest.mark.slow),
        pytest.param(qwen3_5("da"), {}, id="qwen3_5-narrow-keys", marks=pytest.mark.slow),
    ],
)
def test_equal_to_transformers(tiny: Tiny, options: dict[str, Any], tmp_path: Path) -> None:
    """Runs cut in two, then windows that cross a line, in company."""
    oracle = Oracle(tiny, tmp_path)
    outputs = serve(
        tmp_path,
        GIVEN,
        8,
        backend="triton",
        device=DEVICE,
        max_num_seqs=2,
        max_num_batched_tokens=24,
        **options,
    )
    assert_equal_to_oracle(oracle, GIVEN, outputs)
