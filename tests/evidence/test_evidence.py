from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from . import (
    MODELS,
    VOCAB,
    Fault,
    Library,
    OracleRun,
    Verdict,
    assert_evidence,
    assert_state_matters,
    build,
    changes,
    compare,
    damaged_logprobs,
    random_prompt,
)

# The rules, tried on a run made by hand


def make_run(count: int = 64, close: dict[int, float] | None = None) -> OracleRun:
    """Token i % 32 is chosen at i, two ahead of the next; `close` gives positions another margin to the second."""
    logits = torch.full((count, 34), -4.0)
    for position in range(count):
        logits[position, position % 32] = 0.0
        logits[position, 32] = -(close or {}).get(position, 2.0)
        logits[position, 33] = -3.0
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    return OracleRun((5, 6, 7), tuple(i % 32 for i in range(count)), logprobs, logprobs[:3])


def answer(run: OracleRun) -> tuple[list[int], list[float]]:
    return list(run.tokens), list(run.token_logprobs)


def replace(run: OracleRun, position: int, token: int, off: float = 0.0) -> tuple[list[int], list[float]]:
    """The oracle's answer with another token at a position, and its true log-probability but for `off`."""
    tokens, logprobs = answer(run)
    tokens[position] = token
    logprobs[position] = float(run.logprobs[position, token]) + off
    return tokens, logprobs


def test_the_same_answer_passes() -> None:
    run = make_run()
    verdict = compare(run, *answer(run))
    assert verdict == Verdict("prompt of 3 tokens (5, 6, 7)", 64, False, 0.0, 64, 32, None)
    assert_evidence([verdict])


def test_a_wrong_token_is_a_failure() -> None:
    verdict = compare(make_run(), *replace(make_run(), 9, 32), request="request 4")
    assert verdict.failure is not None
    assert verdict.positions == 10
    for part in (
        "request 4: position 9: expected token 9, found 32",
        "2.00e+00 behind",
        "margin there is 2.00e+00",
    ):
        assert part in verdict.failure
    with pytest.raises(AssertionError, match="1 of 2 answers are wrong"):
        assert_evidence([compare(make_run(), *answer(make_run())), verdict])


def test_a_tie_is_a_tie_and_ends_the_comparison() -> None:
    run = make_run(close={9: 5e-5})
    tokens, logprobs = replace(run, 9, 32)
    tokens[10:], logprobs[10:] = [3] * 54, [0.0] * 54
    verdict = compare(run, tokens, logprobs)
    assert (verdict.failure, verdict.tie, verdict.positions) == (None, True, 10)


def test_a_tie_at_the_oracles_token_is_no_tie() -> None:
    run = make_run(close={9: 5e-5})
    verdict = compare(run, *answer(run))
    assert (verdict.failure, verdict.tie, verdict.positions) == (None, False, 64)


@pytest.mark.parametrize(
    ("close", "token", "off", "why"),
    [
        ({9: 2e-4}, 32, 0.0, "the margin is too wide"),
        ({9: 5e-5}, 33, 0.0, "the third token is not part of the tie"),
        ({9: 5e-5}, 32, 3e-4, "the log-probability must fit the token found"),
        ({}, 9, 3e-4, "the right token with a wrong log-probability"),
        ({}, 9, -3e-4, "the right token with a wrong log-probability"),
        ({}, 9, math.nan, "not a number"),
        ({}, 9, -math.inf, "not a number"),
    ],
)
def test_the_margin_hides_no_difference(close: dict[int, float], token: int, off: float, why: str) -> None:
    run = make_run(close=close)
    assert compare(run, *replace(run, 9, token, off)).failure is not None, why


def test_a_token_outside_the_vocabulary_is_a_failure() -> None:
    tokens, logprobs = answer(make_run())
    for strange in (34, -1):
        tokens[3] = strange
        assert "not in the vocabulary" in str(compare(make_run(), tokens, logprobs).failure)


def test_an_answer_of_another_length_is_a_failure() -> None:
    tokens, logprobs = answer(make_run())
    assert "63 tokens" in str(compare(make_run(), tokens[:-1], logprobs[:-1]).failure)
    assert "63 log-probabilities" in str(compare(make_run(), tokens, logprobs[:-1]).failure)


def test_many_ties_are_no_evidence() -> None:
    run = make_run(close={63: 5e-5})
    right, tie = compare(run, *answer(run)), compare(run, *replace(run, 63, 32))
    assert_evidence([right, tie])  # 1 in 128
    with pytest.raises(AssertionError, match="1 ties in 64 positions"):
        assert_evidence([tie])


def test_few_distinct_tokens_are_no_evidence() -> None:
    run = make_run()
    dull = OracleRun(run.prompt, (7,) * 64, run.logprobs[7].expand(64, -1), run.prompt_logprobs)
    with pytest.raises(AssertionError, match="64 tokens have 1 distinct ones, evidence needs 16"):
        assert_evidence([compare(dull, *answer(dull))])


def test_no_answers_are_no_evidence() -> None:
    with pytest.raises(AssertionError, match="no answer"):
        assert_evidence([])


# The models


@pytest.mark.parametrize("name", ["lfm2-hybrid", "qwen3_5_vl-hybrid"])
def test_a_model_is_the_same_in_one_file_or_several(name: str, library: Library) -> None:
    single, sharded = library.directory(name), library.directory(name, sharded=True)
    weight_map = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 2
    with safe_open(single / "model.safetensors", framework="pt") as whole:
        assert set(whole.keys()) == set(weight_map)
        assert any(key.startswith("mtp.") for key in weight_map) == bool(MODELS[name].unused)
        for key, file in weight_map.items():
            with safe_open(sharded / file, framework="pt") as part:
                assert torch.equal(whole.get_tensor(key), part.get_tensor(key)), key


def test_a_seed_gives_the_same_weights(tmp_path: Path, library: Library) -> None:
    model = MODELS["qwen3_5-pair"]
    again, other = (build(model, tmp_path / str(seed), seed=seed) for seed in (0, 1))
    weights = (library.directory(model.name) / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == weights
    assert (other / "model.safetensors").read_bytes() != weights


# The oracle


@pytest.mark.parametrize("name", ["lfm2-hybrid", "qwen3_5-hybrid", "qwen3_5_vl-hybrid"])
def test_the_oracle_agrees_with_generate(name: str, library: Library) -> None:
    oracle = library.oracle(name)
    prompt = torch.tensor([(0, *random_prompt(20, seed=1))])
    oracle.model.generation_config.eos_token_id = None
    out = oracle.model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),  # or it would take token 0 for padding
        do_sample=False,
        max_new_tokens=32,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    run = oracle.run(prompt[0].tolist(), 32)
    assert out.sequences[0, prompt.shape[1] :].tolist() == list(run.tokens)
    torch.testing.assert_close(
        torch.log_softmax(torch.cat(out.logits), dim=-1), run.logprobs, atol=1e-6, rtol=0
    )


def test_the_oracle_computes_a_prompt_once(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, prompt = library.oracle("lfm2-pair"), random_prompt(9, seed=2)
    assert library.oracle("lfm2-pair") is oracle
    run = oracle.run(prompt, 8)
    monkeypatch.setattr(oracle, "step", None)
    assert oracle.run(prompt, 8).tokens == run.tokens
    assert oracle.run(list(prompt), 3).tokens == run.tokens[:3]
    assert oracle.run(prompt, 3).logprobs.shape == (3, VOCAB)
    assert torch.equal(run.prompt_logprobs[-1], run.logprobs[0])


# The evidence that these models give

LENGTHS = (2, 17, 70)
ROUNDING = 5e-5
"""Two ways through the oracle differ by less on every log-probability: half of what an engine is allowed."""


def check_model(library: Library, name: str, seed: int, lengths: tuple[int, ...]) -> None:
    oracle = library.oracle(name, seed=seed)
    verdicts = []
    for length in lengths:
        prompt, other = (random_prompt(length, seed=1000 * seed + 10 * length + i) for i in range(2))
        assert_state_matters(oracle, prompt, other)
        run = oracle.run(prompt)
        verdicts.append(compare(run, run.tokens, run.token_logprobs))
        at_once = oracle.score(prompt + run.tokens[:-1])[len(prompt) - 1 :]
        torch.testing.assert_close(at_once, run.logprobs, atol=ROUNDING, rtol=0)
    assert_evidence(verdicts)


@pytest.mark.parametrize("name", MODELS)
def test_state_matters(name: str, library: Library) -> None:
    check_model(library, name, 0, LENGTHS[1:])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", MODELS)
def test_state_matters_whatever_the_seed(name: str, seed: int, library: Library) -> None:
    check_model(library, name, seed, LENGTHS)


def test_the_control_tries_every_state(library: Library) -> None:
    prompt, other = random_prompt(5, seed=3), random_prompt(5, seed=4)
    moved = changes(damaged_logprobs(library.oracle("qwen3_5-pair"), prompt, other, steps=1))
    states = [(0, "conv"), (0, "temporal"), (1, "keys"), (1, "values")]
    assert list(moved) == [Fault(*state, kind) for state in states for kind in ("zero", "swap", "delay")]


def test_the_rules_see_every_fault(library: Library) -> None:
    """Damage to one state, answered as an engine would, is a failure and not a tie."""
    oracle = library.oracle("qwen3_5-hybrid")
    prompt, other = random_prompt(17, seed=3), random_prompt(17, seed=4)
    run, steps = oracle.run(prompt, 17), 16
    for fault, rows in damaged_logprobs(oracle, prompt, other, steps).items():
        tokens = [run.tokens[0], *rows.argmax(dim=-1).tolist()]
        logprobs = [run.token_logprobs[0], *rows.amax(dim=-1).tolist()]
        verdict = compare(run, tokens, logprobs)
        assert (verdict.failure is None) == (fault is None), (fault, verdict)


def test_a_model_whose_state_does_not_matter_is_refused(library: Library) -> None:
    oracle = library.oracle("lfm2-pair", seed=99)
    with torch.no_grad():
        oracle.model.model.layers[0].conv.out_proj.weight.mul_(1e-5)
    with pytest.raises(AssertionError, match=r"damage that would not be seen.*layer=0, state='conv'"):
        assert_state_matters(oracle, random_prompt(5, seed=3), random_prompt(5, seed=4))
