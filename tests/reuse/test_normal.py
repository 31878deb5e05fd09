"""In normal mode a hit says what transformers says: the same tokens but for ties, log-probabilities within 1e-4."""

from __future__ import annotations

from typing import Any

import pytest
from tests.evidence import Oracle
from tests.models.conformance import assert_equal_to_oracle

from holdfast import LLM

from .test_hits import assert_whole, counters, params, prompt

ANSWER = 64
WAYS: dict[str, dict[str, Any]] = {
    "pages-of-64": {},
    "pages-of-16": dict(page_size=16),
    "chunks-of-50": dict(max_num_batched_tokens=50, overlap=False, page_size=32),
    "opposite-axis-order": dict(backend="reference_kv", page_size=16, fold_every=8),
    "windows-of-5": dict(speculative_config=dict(method="ngram", num_speculative_tokens=4), page_size=16),
}


def resumed_answers(oracle: Oracle, directory: Any, **options: Any) -> None:
    """A prompt, the same again, a branch of it, and the next turn of it: all but the first resume."""
    llm = LLM(directory, **{"max_num_seqs": 4, "max_model_len": 384, **options})
    stem = prompt(150, 3)
    [first] = llm.generate([stem], params(ANSWER))
    asked = [stem, [*stem[:137], *prompt(9, 1)], [*stem, *first.token_ids, *prompt(12, 2)]]
    outputs = [llm.generate([one], params(ANSWER))[0] for one in asked]
    outputs += llm.generate([[*stem[:137], *prompt(7, n)] for n in (4, 5)], params(ANSWER))
    asked += [[*stem[:137], *prompt(7, n)] for n in (4, 5)]
    assert_equal_to_oracle(oracle, asked, outputs)  # type: ignore[arg-type]
    cached = [output.cached_tokens for output in outputs]
    assert min(cached[0], cached[2]) >= 128 and min(cached[3:]) >= 128, cached
    assert_whole(llm)


@pytest.mark.parametrize("way", ["pages-of-64", "pages-of-16"])
def test_a_hit_is_what_transformers_computes(oracle: Oracle, way: str) -> None:
    resumed_answers(oracle, oracle.model.name_or_path, **WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_in_every_way(oracle: Oracle, way: str) -> None:
    resumed_answers(oracle, oracle.model.name_or_path, **WAYS[way])


def test_preempted_is_what_transformers_computes(oracle: Oracle) -> None:
    asked = [prompt(150, 1), prompt(120, 2)]
    llm = LLM(oracle.model.name_or_path, max_num_seqs=4, max_model_len=300, page_size=16, num_pages=22)
    outputs = llm.generate(asked, params(ANSWER))
    assert sum(output.metrics.preemptions for output in outputs)
    assert counters(llm).resumed_after_preemption >= 112
    assert_equal_to_oracle(oracle, asked, outputs)  # type: ignore[arg-type]
    assert_whole(llm)
