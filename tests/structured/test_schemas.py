"""Schemas that are in use elsewhere, with and without drafts: every answer is valid, and the same. NOTICE.md says
whose they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.spec.drafters import Blind, speculating

from holdfast import LLM, SamplingParams, Structured
from holdfast.builtin import SMALL
from holdfast.grammar import GrammarError, Grammars
from holdfast.request import RequestOutput

HERE = Path(__file__).parent
SCHEMAS: dict[str, Any] = json.loads((HERE / "schemas.json").read_text(encoding="utf-8"))
REFUSED: dict[str, Any] = json.loads((HERE / "refused.json").read_text(encoding="utf-8"))
FEW = list(SCHEMAS)[5::61]
ENGINE: dict[str, Any] = dict(max_num_seqs=16, max_model_len=768)
TIE = 1e-4
"""Of two tokens whose scores are as close, rounding may choose."""
FREQUENCY = 1.0
"""Real schemas bound neither texts nor numbers nor what else an object has. A small model would go on for ever, so
it is made to tire of what it repeats, and to like what ends a text, a list or an object."""
CLOSING = 8.0

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
    formats.checks(name)(
        lambda value, pattern=pattern: not isinstance(value, str) or bool(re.fullmatch(pattern, value))
    )


def closing_bias(llm: LLM) -> dict[int, float]:
    texts = ('"', "]", "}", ' "', ',"')
    return {token: CLOSING for token in range(4096) if llm.tokenizer.decode([token]) in texts}


def messages_and_params(llm: LLM, names: Sequence[str]) -> tuple[list[Any], list[SamplingParams]]:
    bias = closing_bias(llm)
    messages, params = [], []
    for name in names:
        schema = SCHEMAS[name]
        kind = (schema.get("typeName") or schema["title"]).split(":")[-1]
        messages.append([{"role": "user", "content": f"Write a {kind} as JSON."}])
        form = Structured(json={"type": "object", **schema})  # which some leave out
        params.append(
            SamplingParams(
                max_tokens=640, structured=form, logprobs=0, logit_bias=bias, frequency_penalty=FREQUENCY
            )
        )
    return messages, params


def ask(llm: LLM, names: Sequence[str]) -> list[RequestOutput]:
    return llm.chat(*messages_and_params(llm, names))


def check(names: Sequence[str], outputs: Sequence[RequestOutput]) -> None:
    for name, output in zip(names, outputs, strict=True):
        assert output.finish_reason == "stop", f"{name}: {output.text}"
        validate(output.text, SCHEMAS[name])
        assert isinstance(json.loads(output.text), dict)


def validate(text: str, schema: Any) -> None:
    exact = json.loads(json.dumps(schema), parse_float=Decimal)  # multiples of 0.01 are exact
    kind = jsonschema.validators.validator_for(exact, default=jsonschema.Draft202012Validator)
    kind(exact, format_checker=formats).validate(json.loads(text, parse_float=Decimal))


def check_same(
    names: Sequence[str],
    plain: Sequence[RequestOutput],
    drafted: Sequence[RequestOutput],
    bias: dict[int, float],
) -> None:
    ties = 0
    for name, one, other in zip(names, plain, drafted, strict=True):
        pairs = enumerate(zip(one.token_ids, other.token_ids, strict=False))
        parted = next((place for place, (a, b) in pairs if a != b), None)
        if parted is None:
            assert one.token_ids == other.token_ids, name
        else:
            ties += 1
            apart = score(one, parted, bias) - score(other, parted, bias)
            assert abs(apart) < TIE, f"{name}: {one.text} and {other.text}"
    assert ties <= len(names) // 50, "so many ties show nothing"


def score(output: RequestOutput, place: int, bias: dict[int, float]) -> float:
    """What the token was chosen by."""
    token = output.token_ids[place]
    penalty = FREQUENCY * output.token_ids[:place].count(token)
    return output.logprobs[place].logprob + bias.get(token, 0.0) - penalty


def test_there_are_enough_and_no_two_are_alike() -> None:
    assert len(SCHEMAS) >= 200 and len({json.dumps(schema) for schema in SCHEMAS.values()}) == len(SCHEMAS)


def test_what_cannot_be_followed_is_refused_with_its_place() -> None:
    grammars = Grammars(SMALL, 4096)
    for name, told in REFUSED.items():
        with pytest.raises(GrammarError) as refused:
            grammars.check(Structured(json=told["schema"]))
        place, _, reason = str(refused.value).partition(": ")
        assert place == told["place"] and reason and "\n" not in reason, name


def test_what_asserts_nothing_is_no_reason_to_refuse() -> None:
    """And a part of JSON Schema that is not understood is one."""
    grammars = Grammars(SMALL, 4096)
    own = {"type": "string", "format": "AWS::EC2::VPC.Id"}
    grammars.check(Structured(json={"items": own, "uniqueItems": False, "description": 3}))
    properties = {"uniqueItems": False, "format": {"const": "iri"}, "title": {}}  # which are names here
    grammars.check(Structured(json={"properties": properties}))
    with pytest.raises(GrammarError, match=r"properties\.a: Unknown format: iri"):
        grammars.check(Structured(json={"properties": {"a": {"type": "string", "format": "iri"}}}))


@pytest.fixture(scope="module")
def small() -> LLM:
    return LLM(**ENGINE)


@pytest.fixture(scope="module")
def few(small: LLM) -> list[RequestOutput]:
    outputs = ask(small, FEW)
    check(FEW, outputs)
    return outputs


@pytest.mark.parametrize("drafter", ["ngram", pytest.param("mtp", marks=pytest.mark.slow)])
def test_some_with_drafts(drafter: str, few: list[RequestOutput]) -> None:
    llm = DRAFTERS[drafter]()
    drafted = ask(llm, FEW)
    check(FEW, drafted)
    check_same(FEW, few, drafted, closing_bias(llm))
    assert llm.speculation_stats().drafts > 50


@pytest.fixture(scope="module")
def all_of_them(small: LLM) -> list[RequestOutput]:
    outputs = ask(small, list(SCHEMAS))
    check(list(SCHEMAS), outputs)
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "step"), [("ngram", 1), ("mtp", 3), ("blind", 8)])
def test_all_with_drafts(drafter: str, step: int, all_of_them: list[RequestOutput]) -> None:
    """With drafters that take longer, a part."""
    names = list(SCHEMAS)[::step]
    llm = DRAFTERS[drafter]()
    drafted = ask(llm, names)
    check(names, drafted)
    check_same(names, all_of_them[::step], drafted, closing_bias(llm))
