"""Every kind of state resumes from what an earlier request left behind, and the sanitizer finds nothing."""

from __future__ import annotations

import pytest
from tests.models import test_kimi_linear, test_mamba1, test_minimax, test_olmo_hybrid, test_zamba2
from tests.models.conformance import TOP, OracleOf, assert_equal_to_oracle, oracles, prompts, slow_but

from holdfast import LLM, SamplingParams

MODELS = {
    "kimi_linear": test_kimi_linear.MODELS["kimi_linear"],
    **{name: test_mamba1.MODELS[name] for name in test_mamba1.FAMILIES},
    "minimax": test_minimax.MODELS["minimax"],
    "olmo_hybrid": test_olmo_hybrid.MODELS["olmo_hybrid"],
    "zamba2": test_zamba2.MODELS["zamba2"],
}
oracle_of = oracles(MODELS)


@pytest.mark.parametrize("name", slow_but(("kimi_linear", "jamba"), MODELS))
def test_resumed_equals_transformers(oracle_of: OracleOf, name: str) -> None:
    oracle, base = oracle_of(name), prompts(150, seed=5)[0]
    llm = LLM(
        oracle.directory,
        max_num_seqs=4,
        max_model_len=384,
        page_size=16,
        num_pages=100,
        num_slots=20,
        sanitizer="full",
    )
    asked = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True, logprobs=TOP)
    [first] = llm.generate([base], asked)
    given = [[*base, *first.token_ids, 1, 2, 3], base, [*prompts(100, seed=6)[0], 9, 8, 7, 6]]
    outputs = llm.generate(given, asked)
    assert_equal_to_oracle(oracle, given, outputs)
    assert [output.metrics.cached_tokens for output in outputs] == [176, 144, 0]
