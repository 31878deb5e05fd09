"""The model's own head as drafter, against a forward of the whole text that keeps nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.conformance import bits, prompts, slow_but
from tests.reuse.families import Find

from holdfast import LLM, SamplingParams
from holdfast.config import ConfigError
from holdfast.memory.spec import ConvSpec
from holdfast.spec.drafter import PATIENCE

from .formats import write_mtp
from .spied import Seen, spied
from .uncached import uncached_drafts

DEPTH = 3
EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=112, page_size=8, fold_every=8, exact=True)
MTP = {"method": "mtp", "num_speculative_tokens": DEPTH}
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24, 17)]


@pytest.fixture(scope="module")
def directory(find: Find, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mtp(find("gated-delta")[0], tmp_path_factory.mktemp("mtp"))


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-empted": dict(num_pages=16, max_num_batched_tokens=9, sanitizer="full"),
    "opposite-axis-order": dict(backend="reference_kv", overlap=False),
}


@pytest.mark.parametrize("way", slow_but(["pre-empted"], WAYS))
def test_the_same_bits(directory: Path, way: str) -> None:
    """An untrained head is hardly ever right, but where noise decides it draws with the model's own."""
    params = [GREEDY, *(replace(GREEDY, temperature=t, seed=7) for t in (1.0, 4.0, 8.0))]
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    llm = LLM(directory, **EXACT, **WAYS[way], speculative_config=MTP)
    outputs = llm.generate(GIVEN, params)
    assert bits(outputs) == bits(wanted)
    assert outputs[-1].metrics.speculation.accept_length > 2.0


def assert_uncached(llm: LLM, drafter: Any, seen: Seen) -> None:
    assert len(seen) > 5
    for text, drafts in seen:
        assert drafts == uncached_drafts(llm._engine.runner.model, drafter, text, DEPTH)


def test_drafts_after_pre_emption_are_those_of_an_uncached_forward(directory: Path) -> None:
    llm = LLM(directory, **EXACT, num_pages=16, max_num_batched_tokens=9, speculative_config=MTP)
    drafter, seen = spied(llm)
    outputs = llm.generate(GIVEN, [GREEDY, GREEDY, *[replace(GREEDY, temperature=5.0, seed=3)] * 2])
    assert sum(output.metrics.preemptions for output in outputs) > 0
    greedy = [pair for pair in seen if pair[0][:9] in (GIVEN[0][:9], GIVEN[1][:9])]
    assert_uncached(llm, drafter, greedy[::6])


def test_drafts_after_a_hit_are_those_of_an_uncached_forward(directory: Path) -> None:
    """Answers were drawn, so that drafts were accepted and lines passed inside windows."""
    llm = LLM(directory, **EXACT, speculative_config=MTP)
    drawn = replace(GREEDY, temperature=6.0, seed=5)
    first = llm.generate(GIVEN, drawn)
    assert llm.speculation_stats().accept_length > 2.0
    again = [[*output.prompt_token_ids, *output.token_ids, 7] for output in first]
    drafter, seen = spied(llm)
    outputs = llm.generate(again, SamplingParams(max_tokens=6, ignore_eos=True))
    assert all(o.cached_tokens > len(p) + 24 for o, p in zip(outputs, GIVEN, strict=True))
    assert_uncached(llm, drafter, seen[::2])


def test_what_it_keeps(directory: Path) -> None:
    llm = LLM(directory, **EXACT, speculative_config=MTP)
    runner, hidden = llm._engine.runner, llm._engine.runner.model.embed.weight.shape[1]
    states = runner.ensemble.state_specs()
    assert states["draft.previous"].conv == {
        "hidden": ConvSpec(hidden, 2, torch.float32, sharded=False, longer=PATIENCE)
    }
    assert [name for name in runner.kv.layers if name.startswith("draft.")] == ["draft.blocks.0"]
    plain = LLM(directory, **EXACT)
    head = sum(weight.nbytes for weight in runner.ensemble.drafter.head.parameters())  # type: ignore[union-attr]
    assert llm.capacity.parts.weights - plain.capacity.parts.weights == head, "embedding and head are shared"


def test_a_model_without_the_tensors(find: Find) -> None:
    with pytest.raises(ValueError, match=r"mtp|fc\.weight"):
        LLM(find("gated-delta")[0], **EXACT, speculative_config=MTP)


def test_a_model_without_a_head(find: Find) -> None:
    with pytest.raises(ConfigError, match="needs a model that brings a head for it"):
        LLM(find("convolution")[0], **EXACT, speculative_config=MTP)


def test_a_head_of_several_layers(directory: Path, tmp_path: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match="mtp_num_hidden_layers=2"):
        LLM(tmp_path, **EXACT, load_format="dummy", speculative_config=MTP)
