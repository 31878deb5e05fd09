"""While nothing is drafted a drafter only remembers; once it has caught up, its drafts are those of one that never
fell behind, also for rows that join, leave, are pre-empted or resume from what was published meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.host.restless import Lulls, Restless
from tests.models.conformance import bits, prompts, slow_but
from tests.reuse.families import Find
from tests.spec.families import FAMILIES
from tests.spec.formats import (
    Target,
    write_dflash,
    write_eagle1,
    write_eagle3,
    write_eagle_multi,
    write_mtp,
    write_recurrent_eagle1,
)
from tests.spec.spied import Seen, spied

from holdfast import LLM, SamplingParams
from holdfast.request import RequestOutput
from holdfast.spec.drafter import PATIENCE

EXACT: dict[str, Any] = dict(max_num_seqs=4, max_model_len=144, page_size=8, fold_every=8, exact=True)
PARAMS = [SamplingParams(max_tokens=n, ignore_eos=True, logprobs=1) for n in (40, 33, 36, 25, 30)]
GIVEN = [[token % 200 for token in prompt] for prompt in prompts(41, 9, 24, 17, 5)]
LULL = (3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2)
LONG_LULL = (3, *[0] * 40)
RESTLESS = ()
"""Another depth every step, and for every row another share of it."""
WAYS: dict[str, dict[str, Any]] = {
    "plain": dict(max_num_batched_tokens=128),
    "no-overlap": dict(max_num_batched_tokens=128, overlap=False),
    "short-memory": dict(max_num_batched_tokens=12),
    "pre-empted": dict(max_num_batched_tokens=20, num_pages=20),
    "long-pages": dict(max_num_batched_tokens=256, page_size=32, num_slots=9),
}
HEADS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "mtp": lambda model, made: {"method": "mtp"},
    "eagle1": lambda model, made: _head("eagle", write_eagle1(Target.of(model), made)),
    "eagle3": lambda model, made: _head("eagle", write_eagle3(Target.of(model), made)),
    "recurrent": lambda model, made: _head("eagle", write_recurrent_eagle1(Target.of(model), made)),
    "multi": lambda model, made: _head("eagle_multi", write_eagle_multi(Target.of(model), made)),
    "dflash": lambda model, made: _head("dflash", write_dflash(Target.of(model), made)),
    "standalone": lambda model, made: _head("standalone", model),
}
LULLS = (LULL, LONG_LULL, RESTLESS)
CASES = [
    (head, way, LULLS[(place + turn) % len(LULLS)])
    for place, head in enumerate(HEADS)
    for turn, way in enumerate(WAYS)
]
"""Any two of a head, a way and a lull meet."""
DAILY = [
    ("mtp", "plain", LULL),
    ("eagle1", "pre-empted", LONG_LULL),
    ("eagle3", "plain", RESTLESS),
    ("recurrent", "short-memory", RESTLESS),
    ("multi", "long-pages", RESTLESS),
    ("dflash", "short-memory", LONG_LULL),
]


def _head(method: str, directory: Path) -> dict[str, Any]:
    return {"method": method, "model": str(directory)}


@pytest.mark.parametrize(("head", "way", "lull"), slow_but(DAILY, CASES))
def test_drafts_after_a_lull_are_those_without(
    find: Find, tmp_path: Path, head: str, way: str, lull: tuple[int, ...]
) -> None:
    model, config = _drafted_by(head, find, tmp_path)
    options = {**EXACT, **WAYS[way], "speculative_config": config}
    wanted, drafted, always = _served(LLM(model, **options), lull, patient=False)
    llm = LLM(model, **options)
    found, seen, took = _served(llm, lull, patient=True)
    assert bits(found) == bits(wanted) and seen == drafted and len(seen) > 5
    if way == "pre-empted":
        assert llm._engine.scheduler.counters.preempted
    else:
        assert sum(output.cached_tokens for output in found) > 50
    assert not always["catch_up"] and took["catch_up"]
    assert took["absorb"] < (0.7 if lull else 1.0) * always["absorb"]


@pytest.mark.parametrize("head", slow_but(["mtp"], HEADS))
def test_few_rows_use_all_its_patience_however_many_there_could_be(
    find: Find, tmp_path: Path, head: str
) -> None:
    """One stays, another joins in the middle of a lull and leaves in the middle of the next."""
    model, config = _drafted_by(head, find, tmp_path)
    sizes = dict(max_num_seqs=32, max_num_batched_tokens=160, max_model_len=512, page_size=128)
    options = {**EXACT, **sizes, "speculative_config": config}
    found = [_visited(LLM(model, **options), patience) for patience in (0, None, 21)]
    (wanted, drafted, never), (answers, seen, whole), (shorter, also_seen, parts) = found
    assert bits(answers) == bits(shorter) == bits(wanted) and seen == also_seen == drafted and len(seen) > 5
    assert not never and max(whole) == PATIENCE and max(parts) == 21 and len(parts) > len(whole)


PAUSES = tuple(depth for pause in range(9, 20) for depth in (3, *[0] * pause))
"""Longer than a page, each ended at another place of one."""


@pytest.mark.parametrize("family", slow_but(["gated-delta"], FAMILIES))
def test_lines_that_it_passes_while_behind_are_where_the_model_has_them(find: Find, family: str) -> None:
    """A model that drafts for itself is right every time, if it finds its state where the model finds its own."""
    model = find(family)[0]
    config = _head("standalone", model) | {"num_speculative_tokens": 3, "adaptive": True}
    llm = LLM(model, **EXACT | dict(max_model_len=256), max_num_batched_tokens=256, speculative_config=config)
    llm._engine.scheduler._depth = Lulls(PAUSES)
    asked = SamplingParams(max_tokens=110, ignore_eos=True)
    first = llm.generate(GIVEN[1:4], asked)
    again = [[*prompt, *output.token_ids, 7] for prompt, output in zip(GIVEN[1:4], first, strict=True)]
    second = llm.generate(again, asked)
    assert sum(output.cached_tokens for output in second) > 50
    found = llm.speculation_stats()
    assert found.drafts > 60 and found.accepted == found.drafts


def _drafted_by(head: str, find: Find, made: Path) -> tuple[Path, dict[str, Any]]:
    model = write_mtp(find("gated-delta")[0], made / "model")
    asked = {"num_speculative_tokens": 3, "adaptive": {"candidate_steps": [0, 1, 2, 3]}}
    return model, HEADS[head](model, made / "head") | asked


def _visited(llm: LLM, patience: int | None) -> tuple[list[RequestOutput], Seen, list[int]]:
    """Answers, drafts, and of how many tokens each catch-up was; patience: another than the drafter's own."""
    backlog, caught_up = llm._engine.runner.backlog, list[int]()
    if patience is not None:
        backlog.patience = patience
    clear = backlog.clear

    def counted() -> None:
        caught_up.append(backlog.tokens)
        clear()

    backlog.clear = counted  # type: ignore[method-assign]
    _, seen = spied(llm)
    llm._engine.scheduler._depth = Lulls((3, 1, 2, *[0] * 150))
    stays, visits = (SamplingParams(max_tokens=n, ignore_eos=True, logprobs=1) for n in (400, 75))
    following = llm.stream(GIVEN[0], stays)
    for _ in range(40):
        next(following)
    visitor = llm.generate([GIVEN[1]], visits)
    *_, stayed = following
    return [*visitor, stayed], seen, caught_up


def _served(
    llm: LLM, lull: Sequence[int], *, patient: bool
) -> tuple[list[RequestOutput], Seen, Counter[str]]:
    """Answers, and then others that resume inside them."""
    assert llm._engine.runner.backlog.patience > 0
    if not patient:
        llm._engine.runner.backlog.patience = 0
    drafter, seen = spied(llm)
    took = Counter[str]()
    for verb in ("absorb", "remember", "catch_up"):
        _count(drafter, verb, took)
    llm._engine.scheduler._depth = Lulls(lull) if lull else Restless((0, 1, 2, 3))
    first = llm.generate(GIVEN, PARAMS)
    again = [
        [*prompt, *output.token_ids[: (-3, 20, 11)[place % 3]], 7]
        for place, (prompt, output) in enumerate(zip(GIVEN, first, strict=True))
    ]
    second = llm.generate(again, PARAMS)
    return first + second, seen, took


def _count(drafter: Any, verb: str, took: Counter[str]) -> None:
    done = getattr(drafter, verb)

    def counted(*given: Any) -> Any:
        took[verb] += 1
        return done(*given)

    setattr(drafter, verb, counted)
