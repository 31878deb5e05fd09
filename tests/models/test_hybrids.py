"""LFM2 and Qwen3.5, attention beside recurrent state: equal to transformers, and to themselves in any company."""

from __future__ import annotations

import copy
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.models.conformance import (
    CONTEXT,
    MIXED,
    VARIANTS,
    VOCAB,
    OracleOf,
    Tiny,
    assert_equal_to_oracle,
    assert_state_matters,
    bits,
    oracles,
    prompts,
    serve,
    slow_but,
)

from holdfast import LLM, SamplingParams
from holdfast.memory.state_pool import LayerState
from holdfast.models import registry

LFM2, QWEN3_5 = "Lfm2ForCausalLM", "Qwen3_5ForCausalLM"
BASE: dict[str, Any] = dict(
    hidden_size=48,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
)
DELTA: dict[str, Any] = dict(
    head_dim=16,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
)


def lfm2(layers: str, **options: Any) -> Tiny:
    return Tiny(LFM2, BASE | dict(block_multiple_of=16) | _layers(layers) | options)


def qwen3_5(layers: str, **options: Any) -> Tiny:
    return Tiny(QWEN3_5, BASE | DELTA | _layers(layers) | options)


def _layers(layers: str) -> dict[str, Any]:
    kinds = {"c": "conv", "d": "linear_attention", "a": "full_attention"}
    return dict(num_hidden_layers=len(layers), layer_types=[kinds[letter] for letter in layers])


MODELS = {
    "lfm2": lfm2("ccac"),
    "lfm2-biased": lfm2("cac", conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False),
    "lfm2-untied": lfm2("cca", tie_word_embeddings=False, num_key_value_heads=1, conv_L_cache=2),
    "qwen3_5": qwen3_5("ddda"),
    "qwen3_5-tied": qwen3_5("da", tie_word_embeddings=True),
    "qwen3_5-odd": qwen3_5(
        "dad", linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=12, attention_bias=True
    ),
    "qwen3_5-wide": qwen3_5("dda", linear_num_value_heads=6, linear_value_head_dim=16, num_key_value_heads=4),
}
DRAFTS = {
    f"windows-of-{n + 1}": dict(
        speculative_config=dict(method="ngram", num_speculative_tokens=n), max_num_batched_tokens=40
    )
    for n in (4, 15)
}
EVERY_WAY = {
    **VARIANTS,
    **DRAFTS,
    "folds-of-8": dict(fold_every=8, page_size=32),
    "alone": dict(max_num_seqs=1),
}
FAST = [
    *product(("lfm2", "qwen3_5"), ("whole", "chunks-of-7", "pre-empted", "all-at-once", "windows-of-5")),
    ("lfm2-biased", "all-at-once"),
    ("qwen3_5-odd", "all-at-once"),
]
NARROW_STATE_LOGPROB = {"bfloat16": 0.25, "int8": 0.25, "float8_e4m3fn": 0.5}
"""How far a log-probability may move when checkpoints are of this dtype, in a model made so sensitive that a state
one token late moves one by 0.7."""

oracle_of = oracles(MODELS)


@pytest.mark.parametrize("name", slow_but(("lfm2", "qwen3_5"), MODELS))
def test_state_matters(oracle_of: OracleOf, name: str) -> None:
    assert_state_matters(oracle_of(name), MIXED)


@pytest.mark.parametrize(("name", "variant"), slow_but(FAST, product(MODELS, EVERY_WAY)))
def test_equal_to_transformers(oracle_of: OracleOf, name: str, variant: str) -> None:
    oracle = oracle_of(name)
    outputs = serve(oracle.directory, MIXED, **EVERY_WAY[variant])
    assert_equal_to_oracle(oracle, MIXED, outputs)
    if "num_pages" in EVERY_WAY[variant]:
        assert sum(output.metrics.preemptions for output in outputs)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_exact_mode_gives_the_same_bits(oracle_of: OracleOf, name: str) -> None:
    oracle, given = oracle_of(name), prompts(150, 90, 64, 5, 1, seed=3)
    together = serve(oracle.directory, given, 40, exact=True)
    assert_equal_to_oracle(oracle, given, together)
    for variant in ("all-at-once", "windows-of-5"):
        apart = serve(oracle.directory, given, 40, exact=True, **EVERY_WAY[variant])
        assert bits(apart) == bits(together), variant
    assert bits(serve(oracle.directory, given[1:2], 40, exact=True)) == bits(together[1:2])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exact_mode_gives_the_same_bits_in_every_variant(oracle_of: OracleOf, name: str) -> None:
    oracle = oracle_of(name)
    whole = serve(oracle.directory, MIXED, exact=True)
    assert_equal_to_oracle(oracle, MIXED, whole)
    for variant, options in EVERY_WAY.items():
        if "fold_every" not in options:  # another grid is another order of the same sum
            assert bits(serve(oracle.directory, MIXED, exact=True, **options)) == bits(whole), variant


@pytest.mark.parametrize(
    ("name", "dtype"), [("lfm2", "bfloat16"), *(("qwen3_5", dtype) for dtype in NARROW_STATE_LOGPROB)]
)
def test_a_narrow_state_stays_within_its_bound(oracle_of: OracleOf, name: str, dtype: str) -> None:
    oracle, given = oracle_of(name), prompts(150, 20, 300)
    worst = 0.0
    for prompt, output in zip(given, serve(oracle.directory, given, state_dtype=dtype), strict=True):
        wanted = oracle.read(prompt, output.token_ids).logprobs
        for place, found in enumerate(output.logprobs or ()):
            worst = max(worst, abs(found.logprob - float(wanted[place, found.token_id])))
    assert worst < NARROW_STATE_LOGPROB[dtype]
    assert name == "lfm2" or worst > 1e-5, "a short convolution's state is its inputs; others are rounded"


@pytest.mark.parametrize(
    "variant", slow_but(("pre-empted", "windows-of-5"), sorted({*EVERY_WAY} - {"folds-of-8"}))
)
def test_a_state_of_one_byte_is_the_same_in_every_company(oracle_of: OracleOf, variant: str) -> None:
    """Exact mode: cut, resumed, pre-empted or guessed at, it is rounded at the same lines to the same bits."""
    oracle = oracle_of("qwen3_5")
    whole = serve(oracle.directory, MIXED, exact=True, state_dtype="int8")
    assert bits(serve(oracle.directory, MIXED, exact=True, state_dtype="int8", **EVERY_WAY[variant])) == bits(
        whole
    )


# --- the engine's own state, spoilt ------------------------------------------------------------------------


def _spoil(state: LayerState, how: str, before: LayerState) -> None:
    """One layer's whole state, as a defect would leave it: forgotten, another request's, or a token late."""
    groups = ((state.saved(), before.saved()), (state.rings(), before.rings()))
    for tensor, earlier in ((now[name], then[name]) for now, then in groups for name in now):
        if how == "zeroed":
            tensor.zero_()
        elif how == "swapped":
            tensor[1:3] = tensor[1:3].flip(0).clone()
        else:
            tensor.copy_(earlier)


@pytest.mark.parametrize("how", ["zeroed", "swapped", "late"])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_spoiling_one_layer_in_the_pools_shows(oracle_of: OracleOf, name: str, how: str) -> None:
    """Were a layer's state not read from the pools, or not matter, the comparisons above would prove nothing."""
    oracle, given = oracle_of(name), prompts(70, 70, seed=5)
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=0)
    for layer in LLM(oracle.directory)._engine.runner.state.layers:
        llm = LLM(oracle.directory, max_num_seqs=2, max_model_len=CONTEXT, overlap=False)
        runner = llm._engine.runner
        launch, state = runner.launch, runner.state.layers[layer]

        def launch_and_spoil(plan: Any, launch: Any = launch, state: LayerState = state) -> Any:
            before = copy.deepcopy(state)
            inflight = launch(plan)
            with torch.inference_mode():
                _spoil(state, how, before)
            return inflight

        runner.launch = launch_and_spoil  # type: ignore[method-assign]
        moved = 0.0
        for prompt, output in zip(given, llm.generate(given, params), strict=True):
            wanted = oracle.read(prompt, output.token_ids).logprobs
            for place, found in enumerate(output.logprobs or ()):
                moved = max(moved, abs(found.logprob - float(wanted[place, found.token_id])))
        assert moved >= 1e-2, f"{layer} {how}: no log-probability moved by more than {moved}"


def test_a_layer_knows_its_own_kind(oracle_of: OracleOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter, or anyone, may edit the config it shares: layers were made, and stay what they are."""
    oracle, given = oracle_of("qwen3_5"), prompts(70, 9)
    expected = bits(serve(oracle.directory, given))
    find, parsed = registry.find, []

    def remember(values: Any) -> Any:
        parsed.append(values)
        return find(values)

    monkeypatch.setattr(registry, "find", remember)
    llm = LLM(oracle.directory, max_num_seqs=8, max_model_len=CONTEXT, num_pages=64)
    for values in parsed:
        values["layer_types"][:] = ["full_attention"] * len(values["layer_types"])
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True, logprobs=4)
    assert bits(llm.generate(given, params)) == expected


# --- weights as they are on the hub ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5"])
def test_sharded_files_load_the_same(oracle_of: OracleOf, name: str, tmp_path: Path) -> None:
    oracle, given = oracle_of(name), prompts(40)
    oracle.model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert bits(serve(tmp_path, given)) == bits(serve(oracle.directory, given))


@pytest.mark.parametrize("tied", [False, True])
def test_the_text_part_of_a_multimodal_checkpoint(tmp_path: Path, tied: bool) -> None:
    vision = dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4, num_position_embeddings=16
    )
    text = {"vocab_size": VOCAB, **qwen3_5("dda", tie_word_embeddings=tied).options}
    config = transformers.Qwen3_5Config(
        text_config=text,
        vision_config=vision | dict(out_hidden_size=text["hidden_size"]),
        tie_word_embeddings=tied,
    )
    model = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        "Qwen3_5ForConditionalGeneration"
    ]
    (prompt,) = prompts(70)
    (output,) = serve(tmp_path, [prompt], 16)
    with torch.no_grad():
        seen = model(torch.tensor([[*prompt, *output.token_ids]])).logits[0, len(prompt) - 1 : -1]
    wanted = seen.double().log_softmax(-1)
    assert list(output.token_ids) == wanted.argmax(-1).tolist()
    for place, found in enumerate(output.logprobs or ()):
        assert abs(found.logprob - float(wanted[place, found.token_id])) < 1e-4
