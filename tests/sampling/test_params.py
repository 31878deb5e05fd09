"""Parameters that contradict themselves are refused in words that say what to change; the model's own advice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, SamplingParams
from holdfast.defaults import advised_params
from holdfast.params import MAX_LISTED

from .conftest import ROOMY, Engines


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (dict(max_tokens=0), "max_tokens=0 must be at least 1"),
        (dict(max_tokens=2.5), "max_tokens=2.5 must be a whole number"),
        (dict(max_tokens=2**31), "max_tokens=2147483648 must be at most 2147483647"),
        (dict(min_tokens=-1), "min_tokens=-1 must be at least 0"),
        (
            dict(min_tokens=9, max_tokens=8),
            "min_tokens=9 is more than max_tokens=8; lower one or raise the other",
        ),
        (dict(temperature=-0.1), "temperature=-0.1 must be 0 (greedy) or more"),
        (dict(temperature=math.nan), "temperature=nan must be a finite number"),
        (dict(temperature=math.inf), "temperature=inf must be a finite number"),
        (dict(temperature=10**400), "must be a finite number"),
        (dict(temperature="0.7"), "temperature='0.7' must be a finite number"),
        (dict(temperature=1e-6), "temperature=1e-06 must be 0 (greedy) or at least 0.001"),
        (dict(top_k=-1), "top_k=-1 must be 0 (off) or more"),
        (dict(top_p=0.0), "top_p=0.0 must be above 0 and at most 1"),
        (dict(top_p=1.01), "top_p=1.01 must be above 0 and at most 1"),
        (dict(min_p=math.nan), "min_p=nan must be a finite number"),
        (dict(min_p=-0.5), "min_p=-0.5 must be between 0 and 1"),
        (dict(seed=2**63), "seed=9223372036854775808 must be a whole number of 64 bits"),
        (dict(seed=1.0), "seed=1.0 must be a whole number"),
        (dict(n=0), "n=0 must be at least 1"),
        (dict(n=3), "n=3 with temperature=0 would give the same answer 3 times; raise temperature"),
        (dict(stop=""), "stop has ''; every stop must be a string of at least one character"),
        (dict(stop=["a", ""]), "stop has ''"),
        (dict(stop=[3]), "stop has 3"),
        (dict(stop_token_ids=["a"]), "stop_token_ids has 'a'; use stop for strings"),
        (dict(stop_token_ids=[1] * (MAX_LISTED + 1)), "stop_token_ids names 513 tokens; it may name 512"),
        (dict(logprobs=21), "logprobs=21 must be between 0 and 20"),
        (dict(prompt_logprobs=-1), "prompt_logprobs=-1 must be between 0 and 20"),
        (dict(prompt_logprobs=True), "prompt_logprobs=True must be between 0 and 20"),
        (dict(repetition_penalty=0), "repetition_penalty=0 must be between 0.01 and 100; 1 is off"),
        (dict(repetition_penalty=math.inf), "repetition_penalty=inf must be a finite number"),
        (dict(presence_penalty=2.1), "presence_penalty=2.1 must be between -2 and 2; 0 is off"),
        (dict(frequency_penalty=math.nan), "frequency_penalty=nan must be a finite number"),
        (dict(logit_bias={"a": 1.0}), "logit_bias names 'a'; its keys are token ids"),
        (dict(logit_bias={7: math.nan}), "logit_bias[7]=nan must be a finite number"),
        (dict(logit_bias={7: -math.inf}), "logit_bias[7]=-inf must be a finite number"),
        (dict(logit_bias={7: 101}), "logit_bias[7]=101 must be between -100 (never) and 100 (always)"),
        (dict(logit_bias=dict.fromkeys(range(513), 1.0)), "logit_bias names 513 tokens; it may name 512"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_contradictions_are_refused(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        SamplingParams(**params)
    assert reason in str(refused.value)


def test_lists_and_single_strings_are_taken() -> None:
    params = SamplingParams(stop="\n", stop_token_ids=[3, 4])
    assert params == SamplingParams(stop=["\n"], stop_token_ids=(3, 4))
    assert hash(params) == hash(SamplingParams(stop=("\n",), stop_token_ids=(3, 4)))
    bias = {1: 2.0}
    kept = SamplingParams(logit_bias=bias)
    bias[1] = 5.0
    assert kept.logit_bias == {1: 2.0}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (None, SamplingParams()),
        ({}, SamplingParams()),
        ({"eos_token_id": [1, 2], "temperature": None}, SamplingParams()),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1},
            SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1),
        ),
        ({"do_sample": True, "top_p": 0.8}, SamplingParams(temperature=1.0, top_p=0.8)),
        ({"temperature": 0.3}, SamplingParams(temperature=0.3)),
        (
            {"do_sample": False, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05},
            SamplingParams(repetition_penalty=1.05),
        ),
        ({"max_new_tokens": 2048, "max_length": 20}, SamplingParams(max_tokens=2048)),
    ],
)
def test_the_models_advice(tmp_path: Path, file: dict[str, Any] | None, expected: SamplingParams) -> None:
    if file is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(file))
    assert advised_params(tmp_path) == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold a JSON object"),
        (
            '{"do_sample": true, "top_p": 7}',
            "top_p=7 must be above 0 and at most 1; give SamplingParams of your own",
        ),
    ],
)
def test_bad_advice_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"generation_config\.json") as refused:
        advised_params(tmp_path)
    assert reason in str(refused.value)


def test_advice_is_followed_where_nothing_else_is_said(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = engines(**ROOMY)
    assert llm.default_params() == SamplingParams()
    advised = SamplingParams(temperature=1.0, seed=7, max_tokens=9, ignore_eos=True)
    monkeypatch.setattr(llm, "default_params", lambda: advised)
    wanted = llm.generate("x", advised)[0].text
    assert llm.generate("x")[0].text == wanted
    assert list(llm.stream("x"))[-1].text == wanted
    messages = [{"role": "user", "content": "x"}]
    assert llm.chat(messages)[0].text == llm.chat(messages, advised)[0].text
    assert llm.generate("x", SamplingParams(max_tokens=4, ignore_eos=True))[0].text != wanted
