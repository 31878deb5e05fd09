"""holdfast-small: as the library computes it, and a model on which broken state shows."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.evidence.oracle import Oracle
from tests.evidence.rules import assert_evidence, compare
from tests.faults.wrong_place import next_lanes_slots

from holdfast import LLM, SamplingParams
from holdfast.builtin import SMALL, TINY_LFM2, builtin_models
from holdfast.eval.questions import SETS, Question, QuestionSet, read_set
from holdfast.eval.run import EVERYTHING, PLAIN, count_right
from holdfast.text import Tokenizer

MTP = {"method": "mtp", "num_speculative_tokens": 3}
ASKED = ("Tell me a story about a brave dog.", "What is the sun?", "Write a few lines about the sea.")


def talk(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_what_is_in_the_box() -> None:
    weights = {path.parent.name: path.stat().st_size for path in SMALL.parent.glob("*/*.safetensors")}
    assert weights["holdfast-small"] <= 16 * 2**20
    assert sum(weights.values()) <= 24e6
    assert weights.keys() == builtin_models().keys()
    for name, directory in builtin_models().items():
        assert "Trained" in (directory / "README.md").read_text(), f"{name} has no card"


@pytest.mark.parametrize("directory", [SMALL, TINY_LFM2], ids=lambda path: path.name)
def test_the_library_loads_it_unchanged_and_agrees(directory: Path) -> None:
    kind = getattr(transformers, json.loads((directory / "config.json").read_text())["architectures"][0])
    _, told = kind.from_pretrained(directory, output_loading_info=True)
    assert not any(told.values()), told
    theirs, ours = transformers.AutoTokenizer.from_pretrained(directory), Tokenizer.from_dir(directory)
    given = [ours.apply_chat(talk(text)) for text in ASKED]
    for text, tokens in zip(ASKED, given, strict=True):
        rendered = theirs.apply_chat_template(talk(text), add_generation_prompt=True, tokenize=False)
        assert theirs(rendered, add_special_tokens=False)["input_ids"] == tokens
    params = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=0)
    outputs = LLM(directory, max_model_len=256, max_num_seqs=4).generate(given, params)
    oracle = Oracle(directory)
    assert_evidence(
        compare(oracle.run(prompt, 40), output.token_ids, [it.logprob for it in output.logprobs or ()])
        for prompt, output in zip(given, outputs, strict=True)
    )


@functools.cache
def remembered(length: int) -> QuestionSet:
    """Questions about conversations of so many tokens, about."""
    kinds = [json.loads(line)["kind"] for line in (SETS / "recall.jsonl").read_text().splitlines()]
    every = read_set("recall")
    chosen: list[Question] = [
        question for question, kind in zip(every.questions, kinds, strict=True) if kind.endswith(f"@{length}")
    ]
    return QuestionSet("recall", chosen, 640)


def share_right(length: int, options: dict[str, Any], every: int = 1) -> float:
    asked = replace(remembered(length), questions=remembered(length).questions[::every])
    outputs = LLM(SMALL, **options).chat(
        [it.messages for it in asked.questions], SamplingParams(max_tokens=640)
    )
    right = count_right(asked, outputs)
    assert right is not None
    return right / len(outputs)


ALL_ON: dict[str, Any] = {**EVERYTHING, "speculative_config": MTP, "max_num_batched_tokens": 96}


def test_it_remembers_and_a_wrong_slot_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_right(256, ALL_ON, every=2) >= 0.9
    next_lanes_slots(monkeypatch)
    assert share_right(256, ALL_ON, every=2) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("length", [256, 512, 1024, 1900])
def test_it_remembers_as_well_with_everything_on(length: int) -> None:
    plain, everything = share_right(length, {**PLAIN}), share_right(length, ALL_ON)
    assert plain >= 0.9 and everything == plain


def test_its_own_head_guesses_well() -> None:
    llm = LLM(SMALL, max_model_len=256, max_num_seqs=8, speculative_config=MTP)
    llm.chat([talk(text) for text in ASKED], SamplingParams(max_tokens=60))
    assert llm.speculation_stats().accept_length >= 2.0


def test_names() -> None:
    params = SamplingParams(max_tokens=8)
    small = dict(max_model_len=64, max_num_seqs=1)
    [by_name], [by_default] = (LLM(it, **small).chat(talk("Hi"), params) for it in (SMALL.name, None))
    assert by_name.token_ids == by_default.token_ids
