"""A model as drafter of another, with state of its own in the same pools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.conformance import bits, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.families import FAMILIES

from holdfast import LLM, SamplingParams
from holdfast.config import ConfigError
from holdfast.spec.drafter import Draft, VerifiedStep

EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=112, page_size=8, fold_every=8, exact=True)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-empted": dict(num_pages=15, max_num_batched_tokens=18, backend="reference_kv", sanitizer="full"),
}
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
PARAMS = [
    GREEDY,
    replace(GREEDY, temperature=0.9, seed=1),
    replace(GREEDY, temperature=1.2, top_k=20, seed=2),
]
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24)]


def standalone(model: Path, depth: int = 5) -> dict[str, Any]:
    return {"method": "standalone", "model": str(model), "num_speculative_tokens": depth}


CASES = [(family, way) for family in FAMILIES for way in WAYS]


@pytest.mark.parametrize(("family", "way"), slow_but([("gated-delta", "pre-empted")], CASES))
def test_a_model_that_drafts_for_itself_is_always_right(find: Find, family: str, way: str) -> None:
    """It is only if its state is at every step what the model's is; chances are the same where noise decides."""
    directory = find(family)[0]
    wanted = LLM(directory, **EXACT).generate(GIVEN, PARAMS)
    llm = LLM(directory, **EXACT, **WAYS[way], speculative_config=standalone(directory))
    outputs = llm.generate(GIVEN, PARAMS)
    assert bits(outputs) == bits(wanted)
    found = llm.speculation_stats()
    assert found.drafts > 60 and found.accepted == found.drafts
    if "num_pages" in WAYS[way]:
        assert sum(output.metrics.preemptions for output in outputs)
        return
    again = [[*output.prompt_token_ids, *output.token_ids, 7] for output in outputs]
    after = llm.generate(again, GREEDY)
    assert sum(output.cached_tokens for output in after) > 100
    assert llm.speculation_stats().accepted == llm.speculation_stats().drafts, "its state resumes too"


def test_looking_ahead_at_several_tokens_at_once(find: Find) -> None:
    """A block of drafts says the same as one after the other, wherever lines of the grid are."""
    directory = find("gated-delta")[0]
    llm = LLM(directory, **EXACT, speculative_config=standalone(directory))
    drafter: Any = llm._engine.runner.speculation.drafter
    propose, seen = drafter.propose, []

    def twice(step: VerifiedStep) -> Draft:
        draft = propose(step)
        block = torch.cat((step.last[:, None], draft.tokens[:, :-1]), 1)
        logits = drafter.model.logits(drafter.model(step.window(block)))
        seen.append(bool((logits.argmax(-1).view_as(block) == draft.tokens).all()))
        return draft

    drafter.propose = twice
    llm.generate(GIVEN, GREEDY)
    assert len(seen) > 6 and all(seen)
    assert llm.speculation_stats().accepted == llm.speculation_stats().drafts


PAIRS = [("gated-delta", "convolution"), ("attention", "gated-delta"), ("convolution", "attention")]


@pytest.mark.parametrize(("family", "drafter"), slow_but(PAIRS[1:2], PAIRS))
def test_another_model_drafts(find: Find, family: str, drafter: str) -> None:
    """Attention, state or both, on either side: a model without state gets slots for its drafter's."""
    directory = find(family)[0]
    params = [replace(one, temperature=4.0, seed=4) for one in PARAMS]
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    llm = LLM(directory, **EXACT, sanitizer="full", speculative_config=standalone(find(drafter)[0]))
    assert bits(llm.generate(GIVEN, params)) == bits(wanted)
    assert llm.speculation_stats().accepted > 10
    states, kv = llm._engine.runner.state.layers, llm._engine.runner.kv.layers
    assert any(name.startswith("draft.") for name in (*states, *kv))
    assert any(not name.startswith("draft.") for name in (*states, *kv))


def test_another_vocabulary(find: Find) -> None:
    with pytest.raises(ConfigError, match="has a vocabulary of 256 tokens, the model one of 512"):
        LLM(find("gated-delta")[0], **EXACT, speculative_config=standalone(find("state-space")[0]))


def test_fewer_positions(find: Find, tmp_path: Path) -> None:
    directory = find("attention")[0]
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 100}))
    with pytest.raises(ConfigError, match=r"has 100 positions, .* give max_model_len=100 or less"):
        LLM(directory, **EXACT, speculative_config=standalone(tmp_path))


def test_no_model_there(find: Find, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        LLM(find("attention")[0], **EXACT, speculative_config=standalone(tmp_path))
    with pytest.raises(ConfigError, match="standalone needs 'model'"):
        LLM(find("attention")[0], speculative_config={"method": "standalone", "num_speculative_tokens": 3})
