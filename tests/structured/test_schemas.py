"""Two hundred schemas, with and without drafts: every answer is valid, and the same. make_schemas.py made them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from tests.spec.drafters import Blind, speculating

from holdfast import LLM, SamplingParams, Structured
from holdfast.builtin import SMALL
from holdfast.request import RequestOutput

from .make_schemas import FILE, make, written

SCHEMAS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
FEW = list(SCHEMAS)[5::71]
ENGINE: dict[str, Any] = dict(max_num_seqs=16, max_model_len=512)
TIE = 1e-4
"""Of two tokens whose log-probabilities are as close, rounding may choose."""

DRAFTERS: dict[str, Callable[[], LLM]] = {
    "ngram": lambda: LLM(speculative_config={"method": "ngram", "num_speculative_tokens": 4}, **ENGINE),
    "mtp": lambda: LLM(speculative_config={"method": "mtp", "num_speculative_tokens": 2}, **ENGINE),
    "blind": lambda: speculating(SMALL, Blind(3), **ENGINE),
}

formats = jsonschema.FormatChecker(formats=("uuid", "ipv4"))
for name, pattern in {
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|z|[+-]\d\d:\d\d)",
    "date-time": r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?(Z|z|[+-]\d\d:\d\d)",
}.items():
    formats.checks(name)(lambda value, pattern=pattern: bool(re.fullmatch(pattern, value)))


def ask(llm: LLM, names: Sequence[str]) -> list[RequestOutput]:
    messages = [[{"role": "user", "content": f"Write a {name.split()[0]} as JSON."}] for name in names]
    forms = [Structured(json=SCHEMAS[name]) for name in names]
    return llm.chat(messages, [SamplingParams(max_tokens=400, structured=form, logprobs=0) for form in forms])


def check(names: Sequence[str], outputs: Sequence[RequestOutput]) -> None:
    for name, output in zip(names, outputs, strict=True):
        assert output.finish_reason == "stop", f"{name}: {output.text}"
        schema = json.loads(json.dumps(SCHEMAS[name]), parse_float=Decimal)  # multiples of 0.01 are exact
        validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
        validator.validate(json.loads(output.text, parse_float=Decimal))


def check_same(
    names: Sequence[str], plain: Sequence[RequestOutput], drafted: Sequence[RequestOutput]
) -> None:
    ties = 0
    for name, one, other in zip(names, plain, drafted, strict=True):
        pairs = zip(one.logprobs, other.logprobs, strict=False)
        parted = next(((a, b) for a, b in pairs if a.token_id != b.token_id), None)
        if parted is None:
            assert one.token_ids == other.token_ids, name
        else:
            ties += 1
            assert abs(parted[0].logprob - parted[1].logprob) < TIE, f"{name}: {one.text} and {other.text}"
    assert ties <= len(names) // 50, "so many ties show nothing"


def test_the_file_is_what_its_maker_makes() -> None:
    assert FILE.read_text(encoding="utf-8") == written(make())
    assert len(SCHEMAS) >= 200 and len({json.dumps(schema) for schema in SCHEMAS.values()}) == len(SCHEMAS)


@pytest.fixture(scope="module")
def small() -> LLM:
    return LLM(**ENGINE)


@pytest.fixture(scope="module")
def few(small: LLM) -> list[RequestOutput]:
    outputs = ask(small, FEW)
    check(FEW, outputs)
    return outputs


@pytest.mark.parametrize("drafter", ["ngram", "mtp"])
def test_some_with_drafts(drafter: str, few: list[RequestOutput]) -> None:
    llm = DRAFTERS[drafter]()
    drafted = ask(llm, FEW)
    check(FEW, drafted)
    check_same(FEW, few, drafted)
    assert llm.speculation_stats().drafts > 50


@pytest.fixture(scope="module")
def all_of_them(small: LLM) -> list[RequestOutput]:
    outputs = ask(small, list(SCHEMAS))
    check(list(SCHEMAS), outputs)
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_all_with_drafts(drafter: str, all_of_them: list[RequestOutput]) -> None:
    """With random drafts, a part: hardly any is accepted, so nothing is quick."""
    step = 8 if drafter == "blind" else 1
    names = list(SCHEMAS)[::step]
    drafted = ask(DRAFTERS[drafter](), names)
    check(names, drafted)
    check_same(names, all_of_them[::step], drafted)
