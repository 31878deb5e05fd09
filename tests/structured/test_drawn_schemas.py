"""Schemas that nobody would write, as hypothesis draws them: every answer is valid, and the same with drafts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.random_model import CONFIG, random_model
from tests.spec.drafters import Blind, speculating

from holdfast import LLM, SamplingParams, Structured
from holdfast.grammar import GrammarError, Grammars

from .test_schemas import validate

ENOUGH = 200
ENGINE: dict[str, Any] = dict(exact=True, max_num_seqs=16, max_model_len=512)
NAMES = ["a", "b", "a b", 'q"', "é"]
VALUES: list[Any] = [None, True, 0, -1.5, "", "é\n", [], [1], {"a": None}, {"b": ['"']}]

Schemas = st.SearchStrategy[dict[str, Any]]


def members(must: dict[str, Any], may: dict[str, Any] | None = None) -> Schemas:
    return st.fixed_dictionaries(must, optional=may)


def between(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


SCALARS: Schemas = st.one_of(
    members({"type": st.just("integer"), "minimum": between(-120, 3), "maximum": between(3, 99)}),
    members(
        {
            "type": st.just("number"),
            "minimum": between(-3, 0),
            "maximum": between(1, 9),
            "multipleOf": st.sampled_from([0.5, 0.01, 1]),
        }
    ),
    members({"type": st.just("string"), "maxLength": between(0, 5)}, {"minLength": between(0, 2)}),
    members({"type": st.just("string"), "format": st.sampled_from(["date", "time", "uuid", "ipv4"])}),
    members(
        {
            "type": st.just("string"),
            "pattern": st.sampled_from(["^[a-c]{2,4}$", r"^\d{1,5}$", '^(é|\\\\|")$']),
        }
    ),
    members({"enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=4)}),
    members({"const": st.sampled_from(VALUES)}),
    members({"type": st.sampled_from(["boolean", "null"])}),
)


def larger(parts: Schemas) -> Schemas:
    several = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        members(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from(NAMES), parts, min_size=1),
                "additionalProperties": st.just(False),
            },
            {"required": st.lists(st.sampled_from(NAMES), unique=True)},
        ),
        members(
            {"type": st.just("array"), "items": parts, "maxItems": between(1, 4)},
            {"minItems": between(0, 1), "prefixItems": several, "uniqueItems": st.just(False)},
        ),
        members({"anyOf": several}),
    )


@cache
def drawn() -> list[dict[str, Any]]:
    """The same ones every time, and none twice."""
    grammars = Grammars(random_model(), CONFIG["vocab_size"])
    found: dict[str, dict[str, Any]] = {}
    refused: set[str] = set()

    @settings(
        max_examples=2 * ENOUGH,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(larger(st.recursive(SCALARS, larger, max_leaves=6)))
    def draw(schema: dict[str, Any]) -> None:
        text = json.dumps(schema)
        try:
            grammars.check(Structured(json=schema))
            found[text] = schema
        except GrammarError as error:
            assert "Unsatisfiable" in str(error), (
                f"{error} of {text}"
            )  # something is required that may not be
            refused.add(text)

    draw()
    assert len(found) >= ENOUGH > len(refused) > 0
    return list(found.values())[:ENOUGH]


@pytest.mark.slow
def test_every_answer_is_valid_with_and_without_drafts() -> None:
    """All of them greedily, some of them sampled as well."""
    schemas = [*drawn(), *drawn()[::4]]
    params = [
        SamplingParams(
            structured=Structured(json=schema), max_tokens=400, temperature=float(place >= ENOUGH), seed=place
        )
        for place, schema in enumerate(schemas)
    ]
    prompts = [f"Tide {place}" for place in range(len(schemas))]
    plain = LLM(random_model(), **ENGINE).generate(prompts, params)
    for output, schema in zip(plain, schemas, strict=True):
        assert output.finish_reason == "stop", f"{schema}: {output.text}"
        validate(output.text, schema)
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    for step, drafted in (
        (1, LLM(random_model(), speculative_config=ngram, **ENGINE)),
        (4, speculating(random_model(), Blind(2), **ENGINE)),
    ):
        again = drafted.generate(prompts[::step], params[::step])
        assert [output.token_ids for output in again] == [output.token_ids for output in plain[::step]]
