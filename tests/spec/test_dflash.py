"""Drafts of a block at once, against plain torch over the whole text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.conformance import bits, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.families import FAMILIES
from tests.spec.formats import PlainDFlash, Target, write_dflash
from tests.spec.spied import assert_drafts, spied

from holdfast import LLM, SamplingParams
from holdfast.config import ConfigError
from holdfast.scheduler.depth import Depth

DEPTH = 6
EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=112, page_size=8, fold_every=8, exact=True)
TIGHT: dict[str, Any] = dict(num_pages=17, max_num_batched_tokens=14)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24, 17)]


def asked(model: Path, depth: int = DEPTH) -> dict[str, Any]:
    return {"method": "dflash", "model": str(model), "num_speculative_tokens": depth}


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-empted": TIGHT | dict(sanitizer="full"),
    "opposite-axis-order": dict(backend="reference_kv", overlap=False),
}
CASES = [(family, way) for family in FAMILIES for way in WAYS]


@pytest.mark.parametrize(("family", "way"), slow_but([("convolution", "pre-empted")], CASES))
def test_the_same_bits(find: Find, tmp_path: Path, family: str, way: str) -> None:
    """Where noise decides, it decides alike for every place of a block."""
    directory = find(family)[0]
    penalised = replace(GREEDY, temperature=40.0, top_p=0.9, repetition_penalty=1.3, seed=6)
    params = [GREEDY, penalised, *(replace(GREEDY, temperature=t, seed=7) for t in (1.0, 200.0))]
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    drafter = write_dflash(Target.of(directory), tmp_path)
    llm = LLM(directory, **EXACT, **WAYS[way], speculative_config=asked(drafter))
    outputs = llm.generate(GIVEN, params)
    assert bits(outputs) == bits(wanted)
    assert outputs[-1].metrics.speculation.accept_length > 2.0


def test_drafts_after_pre_emption_and_hits_are_those_of_plain_torch(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    drafter = write_dflash(Target.of(directory), tmp_path)
    llm = LLM(directory, **EXACT, **TIGHT, speculative_config=asked(drafter))
    _, seen = spied(llm)
    outputs = llm.generate(GIVEN, [GREEDY, GREEDY, *[replace(GREEDY, temperature=200.0, seed=3)] * 2])
    assert sum(output.metrics.preemptions for output in outputs) > 0
    greedy = [pair for pair in seen if pair[0][:9] in (GIVEN[0][:9], GIVEN[1][:9])]
    plain = PlainDFlash(drafter, llm._engine.runner.model)
    assert_drafts(plain, greedy[::5])

    llm = LLM(directory, **EXACT, speculative_config=asked(drafter))
    first = llm.generate(GIVEN, replace(GREEDY, temperature=200.0, seed=5))
    assert llm.speculation_stats().accept_length > 2.0
    again = [[*output.prompt_token_ids, *output.token_ids, 7] for output in first]
    _, seen = spied(llm)
    outputs = llm.generate(again, SamplingParams(max_tokens=6, ignore_eos=True))
    assert all(o.cached_tokens > len(p) + 24 for o, p in zip(outputs, GIVEN, strict=True))
    assert_drafts(plain, seen[::2])


def test_few_drafts_are_the_first_of_a_whole_block(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    adaptive = {"adaptive": {"candidate_steps": [1, DEPTH]}}
    llm = LLM(
        directory, **EXACT, speculative_config=asked(write_dflash(Target.of(directory), tmp_path)) | adaptive
    )
    _, seen = spied(llm)
    for depth in (DEPTH, 1):
        llm._engine.scheduler._depth = Depth(depth)
        llm.generate(GIVEN, SamplingParams(max_tokens=12, ignore_eos=True))
    blocks = {tuple(text): drafts for text, drafts in seen if len(drafts) == DEPTH}
    alone = [(tuple(text), drafts) for text, drafts in seen if len(drafts) == 1 and tuple(text) in blocks]
    assert len(alone) >= len(GIVEN)
    assert all(blocks[text][:1] == drafts for text, drafts in alone)


def test_it_keeps_nothing_but_what_the_model_gave(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    llm = LLM(directory, **EXACT, speculative_config=asked(write_dflash(Target.of(directory), tmp_path)))
    runner = llm._engine.runner
    kept = [name for name in (*runner.kv.layers, *runner.state.layers) if name.startswith("draft.")]
    assert kept == ["draft.blocks.0", "draft.blocks.1"]
    held = sum(weight.nbytes for weight in runner.ensemble.drafter.head.parameters())  # type: ignore[union-attr]
    added = llm.capacity.parts.weights - LLM(directory, **EXACT).capacity.parts.weights
    assert added == held, "embedding and head are the model's"


@pytest.mark.parametrize(
    ("changes", "depth", "message"),
    [
        ({}, 8, "blocks of this drafter have 8 places, one of them for the last token; 7 at most"),
        (dict(hidden_size=24), 3, "has hidden_size=24, the model"),
        (dict(vocab_size=90), 3, "has vocab_size=90, the model"),
        (dict(num_target_layers=77), 3, "made for a model of 77 layers"),
        (dict(use_sliding_window=True), 3, "use_sliding_window=True"),
        (dict(dflash_config={"target_layer_ids": [0, 77], "mask_token_id": 3}), 3, r"reads layers \[0, 77\]"),
        (dict(dflash_config={"target_layer_ids": [0], "mask_token_id": 9999}), 3, "mask_token_id=9999"),
        (dict(dflash_config={"target_layer_ids": [0]}), 3, "mask_token_id is missing"),
        (
            dict(dflash_config={"target_layer_ids": [0], "mask_token_id": 3, "odd": 1}),
            3,
            "unknown fields odd",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    find: Find, tmp_path: Path, changes: dict[str, Any], depth: int, message: str
) -> None:
    directory = find("gated-delta")[0]
    drafter = write_dflash(Target.of(directory), tmp_path, **changes)
    sizes = EXACT | dict(page_size=16, fold_every=16)
    with pytest.raises(ConfigError, match=message):
        LLM(directory, **sizes, speculative_config=asked(drafter, depth))
