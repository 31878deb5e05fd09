"""A backend that another package brings, found by its entry point: right, in its own axis orders, or refused."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.conformance import OracleOf, Tiny, assert_equal_to_oracle, oracles, prompts, serve, slow_but

from holdfast.config import ConfigError, EngineConfig, backends
from holdfast.llm import LLM
from holdfast.ops.backend import TEMPORAL_AXES, choose

MODELS = {
    "gated_delta": Tiny(
        "Qwen3_5ForCausalLM",
        dict(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=6,
        ),
    ),
    "kda": Tiny(
        "KimiLinearForCausalLM",
        dict(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            mlp_layer_types=["dense", "dense"],
            num_attention_heads=4,
            num_key_value_heads=4,
            kv_lora_rank=20,
            qk_rope_head_dim=6,
            qk_nope_head_dim=10,
            v_head_dim=12,
            linear_num_heads=3,
            linear_head_dim=16,
            pad_token_id=0,
        ),
    ),
    "selective_scan": Tiny(
        "MambaForCausalLM", dict(hidden_size=48, state_size=8, time_step_rank=6, num_hidden_layers=2)
    ),
    "ssd": Tiny(
        "Mamba2ForCausalLM",
        dict(
            hidden_size=48,
            num_hidden_layers=2,
            num_heads=8,
            head_dim=12,
            n_groups=2,
            state_size=8,
            chunk_size=16,
        ),
    ),
}
oracle_of = oracles(MODELS)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """It is installed while a test of this file runs."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "package"))
    npu = importlib.import_module("holdfast_npu")
    npu.launched.clear()
    yield npu


def test_every_recurrent_operation_is_tried(package: Any) -> None:
    assert set(MODELS) == set(package.ORDERS) == set(TEMPORAL_AXES)
    assert all(package.ORDERS[name] != axes for name, axes in TEMPORAL_AXES.items())


@pytest.mark.parametrize("name", slow_but(("ssd", "kda"), MODELS))
def test_it_serves_in_its_own_axis_orders(oracle_of: OracleOf, package: Any, name: str) -> None:
    oracle, given = oracle_of(name), prompts(90, 33, 7)
    outputs = serve(oracle.directory, given, 48, backend="npu", max_num_batched_tokens=50)
    assert_equal_to_oracle(oracle, given, outputs)
    assert "silu" in package.launched and ("ssd" in package.launched) == (name == "ssd")


def test_what_a_backend_says_of_itself_is_said_of_the_state(package: Any) -> None:
    ops = choose("npu", exact=False)
    assert (ops.name, dict(ops.temporal_orders)) == ("npu", package.ORDERS)
    assert type(ops) is package.NpuOps


def test_it_is_among_those_to_choose_from() -> None:
    assert backends()[:4] == ("reference", "reference_kv", "triton", "npu")
    with pytest.raises(
        ConfigError, match="backend='tpu' is not one of reference, reference_kv, triton, npu, "
    ):
        EngineConfig(backend="tpu")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (dict(backend="npu", exact=True), "backend='npu' has no exact mode"),
        (dict(backend="npu_misordered"), r"orders ssd as \('head', 'channel', 'row'\); there are .*'state'"),
        (dict(backend="npu_missing"), "which holdfast_npu.kernels:make should give, fails: No module named"),
        (dict(backend="npu_nothing"), "holdfast_npu:make_nothing gave None, not an Ops with exact=False"),
    ],
    ids=lambda value: value.get("backend") if isinstance(value, dict) else "",
)
def test_one_that_does_not_fit_is_refused(
    oracle_of: OracleOf, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LLM(oracle_of("ssd").directory, **options)


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"backend='npu' is not one of reference, reference_kv, triton$"):
        EngineConfig(backend="npu")
    with pytest.raises(ConfigError, match=r"backend='npu' is not one of reference, reference_kv, triton$"):
        choose("npu", exact=False)
