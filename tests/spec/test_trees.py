"""Drafts that branch: whatever the tree, the answer is the one without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.models.conformance import assert_equal_to_oracle, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.drafters import KnowingTree, speculating
from tests.spec.families import FAMILIES
from tests.spec.formats import PlainEagle3, Target, write_eagle3

from holdfast import LLM, SamplingParams
from holdfast.config import ConfigError
from holdfast.spec.drafter import Draft, VerifiedStep
from holdfast.spec.eagle_tree import level_sizes

SIZES: dict[str, Any] = dict(max_num_seqs=3, max_model_len=256, page_size=8, fold_every=8)
GREEDY = SamplingParams(max_tokens=64, ignore_eos=True, logprobs=4)
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(110, 70, 5)]
WAYS: dict[str, dict[str, Any]] = {
    "plain": dict(overlap=False),
    "pre-empted": dict(num_pages=34, max_num_batched_tokens=24, sanitizer="full"),
    "opposite-axis-order": dict(backend="reference_kv"),
}
CASES = [(family, way) for family in FAMILIES for way in WAYS]
DAILY = [("gated-delta", "pre-empted"), ("selective-scan", "plain")]


@pytest.mark.parametrize(("family", "way"), slow_but(DAILY, CASES))
def test_equal_to_transformers(find: Find, family: str, way: str) -> None:
    """Trees of any shape, right at random, over more than twenty pages; then hits on what they left."""
    directory, oracle = find(family)
    texts = [[*prompt, *oracle.run(prompt, 64).tokens] for prompt in GIVEN]
    llm = speculating(directory, KnowingTree(7, texts, 0.7), **SIZES, **WAYS[way])
    outputs = llm.generate(GIVEN, GREEDY)
    assert_equal_to_oracle(oracle, GIVEN, outputs)
    found = llm.speculation_stats()
    assert found.drafts > 50 and found.accept_length > 1.7
    if "num_pages" in WAYS[way]:
        assert sum(output.metrics.preemptions for output in outputs)
    longer = [[*text[: len(text) - 3], 9] for text in texts[1:]]
    again = llm.generate(longer, replace(GREEDY, max_tokens=8))
    assert_equal_to_oracle(oracle, longer, again)
    if "num_pages" not in WAYS[way]:
        assert all(output.cached_tokens > len(p) for output, p in zip(again, GIVEN[1:], strict=True))


@pytest.mark.parametrize("family", slow_but(["convolution"], FAMILIES))
def test_what_is_drawn_stays_what_it_was(find: Find, family: str) -> None:
    """Every seed draws the same text, so the distribution is the same: with top-p, penalties, biases, stops."""
    directory = find(family)[0]
    drawn = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0)
    kinds = [
        replace(drawn, top_p=0.9),
        replace(drawn, temperature=1.5, top_k=20),
        replace(drawn, repetition_penalty=1.4, frequency_penalty=0.3),
        replace(drawn, logit_bias={3: 4.0, 5: 4.0}, stop_token_ids=(5,), min_tokens=6, ignore_eos=False),
    ]
    params = [replace(kind, seed=seed) for seed in range(12) for kind in kinds]
    given = [GIVEN[2]] * len(params)
    sizes = SIZES | dict(max_num_seqs=16)
    wanted = LLM(directory, **sizes).generate(given, params)
    texts = [[*output.prompt_token_ids, *output.token_ids] for output in wanted]
    llm = speculating(directory, KnowingTree(7, texts, 0.5), **sizes)
    outputs = llm.generate(given, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in wanted]
    assert [o.finish_reason for o in outputs] == [o.finish_reason for o in wanted]
    assert len({o.token_ids for o in wanted}) > 24
    by_kind = [sum(o.metrics.speculation.accepted for o in outputs[kind::4]) for kind in range(4)]
    assert by_kind[2] == 0 and min(by_kind[0], by_kind[1], by_kind[3]) > 3


def asked(model: Path, **tree: Any) -> dict[str, Any]:
    return {"method": "eagle", "model": str(model), "num_speculative_tokens": 3} | tree


def test_eagle_grows_the_tree_that_plain_torch_would(find: Find, tmp_path: Path) -> None:
    directory, oracle = find("gated-delta")
    head = write_eagle3(Target.of(directory), tmp_path)
    llm = LLM(directory, **SIZES, speculative_config=asked(head, topk=3, num_draft_tokens=8))
    runner = llm._engine.runner
    drafter: Any = runner.speculation.drafter
    propose, seen = drafter.propose, []

    def spy(step: VerifiedStep) -> Draft:
        draft = propose(step)
        texts = [step.tokens[r, : p + 1].tolist() for r, p in zip(step.rows, step.position, strict=True)]
        assert draft.parents is not None
        seen.extend(zip(texts, draft.tokens.tolist(), draft.parents.tolist(), strict=True))
        return draft

    drafter.propose = spy
    outputs = llm.generate(GIVEN[1:], replace(GREEDY, max_tokens=24))
    assert_equal_to_oracle(oracle, GIVEN[1:], outputs)
    found = llm.speculation_stats()
    assert found.drafts > 4 * found.windows, "the whole tree is verified, but near an answer's end"
    plain, compared = PlainEagle3(head, runner.model), 0
    for text, tokens, parents in seen[::6]:
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*paths[parent], token))
        wanted = plain.tree(text, [3, 3, 1], 3)
        compared += wanted is not None
        assert wanted is None or set(paths[1:]) == wanted
    assert compared > 5


def test_levels_are_wide_at_first_and_none_is_empty() -> None:
    assert level_sizes(15, 5, 4) == [4, 4, 4, 2, 1]
    assert level_sizes(7, 3, 3) == [3, 3, 1]
    assert level_sizes(5, 5, 8) == [1] * 5


@pytest.mark.parametrize(
    ("tree", "options", "message"),
    [
        (dict(topk=0), {}, "topk=0 must be at least 1"),
        (dict(num_draft_tokens=9), {}, "num_draft_tokens=9 can only be 4"),
        (dict(topk=2), {}, "num_draft_tokens=None must be 4 to 7"),
        (dict(topk=2, num_draft_tokens=8), {}, "num_draft_tokens=8 must be 4 to 7"),
        (dict(topk=9, num_draft_tokens=17), {}, "num_draft_tokens=17 must be 4 to 16"),
        (dict(topk=2, num_draft_tokens=3), {}, "num_draft_tokens=3 must be 4 to 7"),
        (dict(topk=4, num_draft_tokens=10), {}, "more than fold_every=8"),
        (dict(topk=2, num_draft_tokens=6), dict(exact=True), "topk > 1 goes with no exact=True"),
        (dict(topk=2, method="eagle_multi"), {}, "eagle_multi has no 'topk'"),
    ],
)
def test_what_cannot_be_is_refused(
    find: Find, tmp_path: Path, tree: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(find("convolution")[0], **SIZES, **options, speculative_config=asked(tmp_path, **tree))


def test_a_chain_by_its_number_of_nodes(find: Find, tmp_path: Path) -> None:
    directory = find("convolution")[0]
    head = write_eagle3(Target.of(directory), tmp_path)
    llm = LLM(directory, **SIZES, speculative_config=asked(head, topk=1, num_draft_tokens=4))
    assert llm._engine.runner.speculation.trees is None
