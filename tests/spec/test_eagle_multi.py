"""A chain of EAGLE heads, one for each draft, against plain torch over the whole text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.conformance import bits, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.families import FAMILIES
from tests.spec.formats import (
    PlainEagle,
    PlainEagle1,
    PlainEagle3,
    PlainEagleMulti,
    PlainRecurrentEagle1,
    Target,
    write_eagle1,
    write_eagle3,
    write_eagle_multi,
    write_recurrent_eagle1,
)
from tests.spec.spied import assert_drafts, spied

from holdfast import LLM, SamplingParams
from holdfast.config import ConfigError

EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=112, page_size=8, fold_every=8, exact=True)
TIGHT: dict[str, Any] = dict(num_pages=16, max_num_batched_tokens=9)
GREEDY = SamplingParams(max_tokens=32, ignore_eos=True, logprobs=1)
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24, 17)]
DEPTH = 3


def asked(model: Path, depth: int = DEPTH) -> dict[str, Any]:
    return {"method": "eagle_multi", "model": str(model), "num_speculative_tokens": depth}


WAYS: dict[str, dict[str, Any]] = {"plain": dict(overlap=False), "pre-empted": TIGHT | dict(sanitizer="full")}
CASES = [(family, way) for family in FAMILIES for way in WAYS]


@pytest.mark.parametrize(("family", "way"), slow_but([("state-space", "pre-empted")], CASES))
def test_the_same_bits(find: Find, tmp_path: Path, family: str, way: str) -> None:
    directory = find(family)[0]
    params = [GREEDY, *(replace(GREEDY, temperature=t, seed=7) for t in (1.0, 9.0, 80.0))]
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    heads = write_eagle_multi(Target.of(directory), tmp_path)
    llm = LLM(directory, **EXACT, **WAYS[way], speculative_config=asked(heads))
    assert bits(llm.generate(GIVEN, params)) == bits(wanted)
    assert llm.speculation_stats().accepted > 5


def test_drafts_after_pre_emption_and_hits_are_those_of_plain_torch(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    heads = write_eagle_multi(Target.of(directory), tmp_path)
    llm = LLM(directory, **EXACT, **TIGHT, speculative_config=asked(heads))
    model = llm._engine.runner.model
    kinds: list[type[PlainEagle]] = [PlainEagle3, PlainEagle1, PlainEagle1]
    plain = PlainEagleMulti([kind(heads / str(number), model) for number, kind in enumerate(kinds)])
    _, seen = spied(llm)
    first = llm.generate(GIVEN, [GREEDY, GREEDY, *[replace(GREEDY, temperature=9.0, seed=3)] * 2])
    assert sum(output.metrics.preemptions for output in first) > 0
    greedy = [pair for pair in seen if pair[0][:9] in (GIVEN[0][:9], GIVEN[1][:9])]
    assert_drafts(plain, greedy[::6])
    again = [[*output.prompt_token_ids, *output.token_ids, 7] for output in first[-2:]]
    seen.clear()
    outputs = llm.generate(again, SamplingParams(max_tokens=5, ignore_eos=True))
    assert sum(o.cached_tokens for o in outputs) > 40
    assert_drafts(plain, seen)


def write_recurrent(target: Target, directory: Path) -> Path:
    """The head in the middle of a chain is recurrent."""
    write_eagle_multi(target, directory)
    write_recurrent_eagle1(target, directory / "1")
    return directory


@pytest.mark.parametrize("family", slow_but(["attention"], FAMILIES))
def test_a_recurrent_head_has_state_of_its_own(find: Find, tmp_path: Path, family: str) -> None:
    """Also where the model has none. It is resumed after pre-emption and hits, like that of any layer."""
    directory = find(family)[0]
    heads = write_recurrent(Target.of(directory), tmp_path)
    params = [GREEDY, *(replace(GREEDY, temperature=t, seed=7) for t in (1.0, 9.0, 80.0))]
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    tight = EXACT | TIGHT | dict(num_pages=17, sanitizer="full")
    llm = LLM(directory, **tight, speculative_config=asked(heads))
    runner = llm._engine.runner
    assert runner.ensemble.state_specs()["draft.eagle.1"].temporal is not None
    assert "draft.eagle.1" not in runner.kv.layers
    _, seen = spied(llm)
    outputs = llm.generate(GIVEN, params)
    assert bits(outputs) == bits(wanted)
    assert sum(output.metrics.preemptions for output in outputs) > 0
    kinds: list[type[PlainEagle]] = [PlainEagle3, PlainRecurrentEagle1, PlainEagle1]
    plain = PlainEagleMulti([kind(heads / str(n), runner.model) for n, kind in enumerate(kinds)])
    greedy = [pair for pair in seen if pair[0][:9] == GIVEN[0][:9]]
    assert_drafts(plain, greedy[::4])
    again = [[*output.prompt_token_ids, *output.token_ids, 7] for output in outputs[-2:]]
    seen.clear()
    resumed = llm.generate(again, SamplingParams(max_tokens=5, ignore_eos=True))
    assert sum(o.cached_tokens for o in resumed) > 40
    assert_drafts(plain, seen)


def test_a_recurrent_head_in_eagle_3_s_format_is_refused(find: Find, tmp_path: Path) -> None:
    directory = find("convolution")[0]
    write_eagle_multi(Target.of(directory), tmp_path)
    write_eagle3(Target.of(directory), tmp_path / "0", layer_types=["linear_attention"])
    with pytest.raises(ConfigError, match="is for heads in EAGLE's format"):
        LLM(directory, **EXACT, speculative_config=asked(tmp_path))


def test_what_it_keeps(find: Find, tmp_path: Path) -> None:
    directory = find("convolution")[0]
    heads = write_eagle_multi(Target.of(directory), tmp_path)
    runner = LLM(directory, **EXACT, speculative_config=asked(heads, 2))._engine.runner
    kept = [name for name in (*runner.kv.layers, *runner.state.layers) if name.startswith("draft.")]
    assert kept == ["draft.eagle.0", "draft.eagle.1", "draft.previous.0", "draft.previous.1"]


def test_a_head_for_every_draft(find: Find, tmp_path: Path) -> None:
    directory = find("convolution")[0]
    heads = write_eagle_multi(Target.of(directory), tmp_path)
    with pytest.raises(
        ConfigError, match=r"5 drafts need a head for each, in directories 0 to 4 of .* there is no 3"
    ):
        LLM(directory, **EXACT, speculative_config=asked(heads, 5))
    write_eagle1(Target(24, 256), tmp_path / "1")
    with pytest.raises(ConfigError, match="the drafter has"):
        LLM(directory, **EXACT, speculative_config=asked(heads))
