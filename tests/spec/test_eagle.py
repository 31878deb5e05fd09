"""EAGLE heads in both formats, against plain torch over the whole text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.conformance import bits, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.families import FAMILIES
from tests.spec.formats import (
    PlainEagle,
    PlainEagle1,
    PlainEagle3,
    Target,
    common_config,
    write_eagle1,
    write_eagle3,
)
from tests.spec.spied import assert_drafts, spied

from holdfast import LLM, SamplingParams
from holdfast.config import ConfigError
from holdfast.models.eagle import parse
from holdfast.models.loader import WeightsError

DEPTH = 4
EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=112, page_size=8, fold_every=8, exact=True)
TIGHT: dict[str, Any] = dict(num_pages=16, max_num_batched_tokens=9)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24, 17)]

FORMATS: dict[str, tuple[Callable[..., Path], type[PlainEagle]]] = {
    "eagle3": (write_eagle3, PlainEagle3),
    "eagle1": (write_eagle1, PlainEagle1),
}


def asked(model: Path, depth: int = DEPTH) -> dict[str, Any]:
    return {"method": "eagle", "model": str(model), "num_speculative_tokens": depth}


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-empted": TIGHT | dict(sanitizer="full"),
    "opposite-axis-order": dict(backend="reference_kv", overlap=False),
}
CASES = [("eagle3", family, way) for family in FAMILIES for way in WAYS]
CASES += [("eagle1", family, "pre-empted") for family in FAMILIES]
DAILY = [("eagle3", "gated-delta", "pre-empted"), ("eagle1", "selective-scan", "pre-empted")]


@pytest.mark.parametrize(("form", "family", "way"), slow_but(DAILY, CASES))
def test_the_same_bits(find: Find, tmp_path: Path, form: str, family: str, way: str) -> None:
    """An untrained head is hardly ever right, but where noise decides it draws with the model's own."""
    directory = find(family)[0]
    head = FORMATS[form][0](Target.of(directory), tmp_path)
    params = [GREEDY, *(replace(GREEDY, temperature=t, seed=7) for t in (1.0, 8.0, 80.0))]
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    llm = LLM(directory, **EXACT, **WAYS[way], speculative_config=asked(head))
    outputs = llm.generate(GIVEN, params)
    assert bits(outputs) == bits(wanted)
    if form == "eagle1":  # the other knows only some of the tokens
        assert outputs[-1].metrics.speculation.accept_length > 2.0


@pytest.mark.parametrize("form", slow_but(["eagle3"], FORMATS))
def test_drafts_after_pre_emption_and_hits_are_those_of_plain_torch(
    find: Find, tmp_path: Path, form: str
) -> None:
    directory = find("gated-delta")[0]
    make, plain = FORMATS[form]
    head = make(Target.of(directory), tmp_path)
    llm = LLM(directory, **EXACT, **TIGHT, speculative_config=asked(head))
    _, seen = spied(llm)
    outputs = llm.generate(GIVEN, [GREEDY, GREEDY, *[replace(GREEDY, temperature=9.0, seed=3)] * 2])
    assert sum(output.metrics.preemptions for output in outputs) > 0
    greedy = [pair for pair in seen if pair[0][:9] in (GIVEN[0][:9], GIVEN[1][:9])]
    right = plain(head, llm._engine.runner.model)
    assert_drafts(right, greedy[::6])

    llm = LLM(directory, **EXACT, speculative_config=asked(head))
    first = llm.generate(GIVEN, replace(GREEDY, temperature=80.0, seed=5))
    again = [[*output.prompt_token_ids, *output.token_ids, 7] for output in first]
    _, seen = spied(llm)
    outputs = llm.generate(again, SamplingParams(max_tokens=6, ignore_eos=True))
    assert all(o.cached_tokens > len(p) + 24 for o, p in zip(outputs, GIVEN, strict=True))
    assert_drafts(right, seen[::3])


def test_eagle3_drafts_only_what_it_knows(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    head = write_eagle3(Target.of(directory), tmp_path)
    known = set((load_file(head / "model.safetensors")["t2d"]).nonzero().flatten().tolist())
    llm = LLM(directory, **EXACT, speculative_config=asked(head))
    _, seen = spied(llm)
    drawn = SamplingParams(max_tokens=20, ignore_eos=True, temperature=20.0, top_p=0.9, seed=3)
    llm.generate(GIVEN[:2], [replace(GREEDY, max_tokens=20), drawn])
    drafted = {token for _, drafts in seen for token in drafts}
    assert drafted <= known and len(drafted) > 20


def test_every_model_lends_its_layers(find: Find, tmp_path: Path) -> None:
    """What a layer leaves is what the next one reads: the last one's, normed, is the model's own output."""
    for family in ("state-space", "attention", "kda"):
        directory = find(family)[0]
        head = write_eagle3(Target.of(directory), tmp_path)
        llm = LLM(directory, **EXACT, speculative_config=asked(head))
        model, seen = llm._engine.runner.model, []
        inner = model.features

        def spy(
            batch: Any, layers: Any = (), inner: Any = inner, seen: Any = seen, model: Any = model
        ) -> Any:
            last = len(model.blocks) - 1
            hidden, left = inner(batch, (last, *layers, last))  # in no order, and one of them twice
            seen += [torch.equal(model.norm(left[:, place]), hidden) for place in (0, -1)]
            return hidden, left[:, 1:-1]

        model.features = spy
        llm.generate(GIVEN[:1], replace(GREEDY, max_tokens=4))
        assert len(seen) > 1 and all(seen)


def test_what_it_keeps(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    llm = LLM(directory, **EXACT, speculative_config=asked(write_eagle3(Target.of(directory), tmp_path)))
    runner = llm._engine.runner
    assert [name for name in runner.kv.layers if name.startswith("draft.")] == ["draft.eagle"]
    assert [name for name in runner.state.layers if name.startswith("draft.")] == ["draft.previous"]
    layers = len(runner.ensemble.drafter.reads)  # type: ignore[union-attr]
    kept = runner.ensemble.state_specs()["draft.previous"].conv["hidden"].channels
    assert layers > 1 and kept == layers * Target.of(directory).hidden
    held = sum(weight.nbytes for weight in runner.ensemble.drafter.head.state_dict().values())  # type: ignore[union-attr]
    added = llm.capacity.parts.weights - LLM(directory, **EXACT).capacity.parts.weights
    assert added == held, "the embedding is the model's"


def test_layers_that_eagle3_reads() -> None:
    config = common_config(Target(16, 100))

    def reads(ids: list[Any] | None, layers: int) -> tuple[int, ...]:
        given = {} if ids is None else {"eagle_aux_hidden_state_layer_ids": ids}
        return parse(config | {"draft_vocab_size": 50, "eagle_config": given}, "config.json").reads(layers)

    assert reads(None, 32) == (1, 15, 28), "those of its inventors: what enters layers 2, 16 and 29"
    assert reads([3, 1], 4) == (3, 1)
    for ids, layers in (([4], 4), ([-1], 4), ([], 4), ([1.0], 4), (None, 3)):
        with pytest.raises(ConfigError, match=f"of the model, which has {layers}"):
            reads(ids, layers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(hidden_size=24), "has hidden_size=24, the model"),
        (dict(vocab_size=90), "has vocab_size=90, the model"),
        (dict(num_hidden_layers=2), "num_hidden_layers=2"),
        (dict(target_hidden_size=24), "target_hidden_size=24"),
        (dict(norm_before_residual=True), "norm_before_residual=True"),
        (dict(moe=1), "unknown fields moe"),
        (dict(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 77]}), r"reads layers \[0, 77\]"),
        (dict(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state=False"),
    ],
)
def test_what_does_not_fit_is_refused(
    find: Find, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    directory = find("gated-delta")[0]
    head = write_eagle3(Target.of(directory), tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        LLM(directory, **EXACT, speculative_config=asked(head))


def test_tensors_that_do_not_fit_are_refused(find: Find, tmp_path: Path) -> None:
    directory = find("gated-delta")[0]
    head = write_eagle3(Target.of(directory), tmp_path)
    weights = load_file(head / "model.safetensors")

    def refuses(changed: dict[str, torch.Tensor], error: type[Exception], message: str) -> None:
        save_file(changed, head / "model.safetensors", {"format": "pt"})
        with pytest.raises(error, match=message):
            LLM(directory, **EXACT, speculative_config=asked(head))

    refuses(weights | {"d2t": weights["d2t"] + 5000}, ConfigError, "d2t of the drafter names tokens beyond")
    refuses(weights | {"d2t": weights["d2t"].float()}, WeightsError, "d2t .* has dtype F32; .* I64, I32")
    refuses({n: w for n, w in weights.items() if n != "fc.weight"}, WeightsError, r"needs fc\.weight")
    with pytest.raises(ConfigError, match="eagle needs 'model'"):
        LLM(directory, speculative_config={"method": "eagle", "num_speculative_tokens": 3})
