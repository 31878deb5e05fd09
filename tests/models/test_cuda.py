"""Every family on a GPU: in float32 the same tokens as transformers, whatever the engine does; in bfloat16 close."""

from __future__ import annotations

import functools
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
from tests.models.conformance import (
    ANSWER,
    CONTEXT,
    MIXED,
    TINY_POOL,
    TOP,
    VARIANTS,
    Oracle,
    OracleOf,
    Tiny,
    assert_equal_to_oracle,
    bits,
    serve,
    worst_kl_in_bfloat16,
)

from holdfast import LLM, SamplingParams

pytestmark = pytest.mark.gpu

MODELS: Mapping[str, Tiny] = {
    "mamba2": Tiny("Mamba2ForCausalLM", test_mamba2.MODELS["grouped"]),
    "qwen3": test_attention_only.MODELS["qwen3"],
    **test_hybrids.MODELS,
    **{name: test_experts.MODELS[name] for name in test_experts.FAMILIES},
    **{name: test_mamba2_hybrids.MODELS[name] for name in test_mamba2_hybrids.FAMILIES},
    **{name: test_mamba1.MODELS[name] for name in test_mamba1.FAMILIES},
    "kimi_linear": test_kimi_linear.MODELS["kimi_linear"],
    "minimax": test_minimax.MODELS["minimax-tied"],
    "olmo_hybrid": test_olmo_hybrid.MODELS["olmo_hybrid"],
    "zamba2": test_zamba2.MODELS["zamba2"],
}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "whole": {},
    "pre-empted": dict(TINY_POOL, max_num_batched_tokens=50),
    "no-overlap": dict(overlap=False, max_num_batched_tokens=64),
    "windows-of-5": test_hybrids.DRAFTS["windows-of-5"],
    "reference": dict(VARIANTS["all-at-once"]),
}


@pytest.fixture(scope="module")
def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> OracleOf:
    return functools.cache(lambda name: Oracle(MODELS[name], tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_transformers(name: str, oracle_of: OracleOf) -> None:
    oracle = oracle_of(name)
    for options in WAYS.values():
        assert_equal_to_oracle(oracle, MIXED, serve(oracle.directory, MIXED, device="cuda", **options))


@pytest.mark.parametrize("name", MODELS)
def test_recorded_steps_give_the_bits_of_eager_ones(name: str, oracle_of: OracleOf) -> None:
    directory = oracle_of(name).directory
    recorded, eager = (bits(serve(directory, MIXED, device="cuda", eager=eager)) for eager in (False, True))
    assert recorded == eager


@pytest.mark.parametrize("name", MODELS)
def test_a_hit_is_equal_to_transformers(name: str, oracle_of: OracleOf) -> None:
    oracle = oracle_of(name)
    llm = LLM(
        oracle.directory, device="cuda", max_num_seqs=8, max_model_len=CONTEXT, page_size=16, num_pages=256
    )
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True, logprobs=TOP)
    llm.generate(MIXED, params)
    again = llm.generate(MIXED, params)
    assert sum(output.cached_tokens for output in again) > 200
    assert_equal_to_oracle(oracle, MIXED, again)


@pytest.mark.parametrize("name", test_hybrids.MODELS)
def test_bfloat16_is_as_close_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    there, here = (worst_kl_in_bfloat16(MODELS[name], tmp_path / on, device=on) for on in ("cuda", "cpu"))
    assert there < 2 * here, f"the worst of a position: {there:.3f}, on the CPU {here:.3f}"
