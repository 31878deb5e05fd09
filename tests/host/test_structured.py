"""What may be asked of an answer's form, before any model is asked."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.params import SamplingParams
from holdfast.structured import MAX_CHARACTERS, Structured


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "structured has nothing; give one of json, regex, grammar, choice"),
        ({"json": {}, "regex": "a"}, "structured has json and regex; give one of"),
        ({"json": "{"}, "structured.json is not JSON: Expecting"),
        ({"json": "[1]"}, "structured.json is a list; a JSON schema is an object"),
        ({"json": {"enum": {1, 2}}}, "structured.json is not JSON: Object of type set"),
        ({"regex": ""}, "structured.regex='' must be a text of at least one character"),
        ({"grammar": 3}, "structured.grammar=3 must be a text"),
        ({"choice": "yes"}, "structured.choice='yes' must be a list of texts"),
        ({"choice": []}, "must be a list of texts, one at least"),
        ({"choice": ["yes", ""]}, "structured.choice has an empty text"),
        ({"choice": ["yes", 1]}, "must be a list of texts"),
        (
            {"regex": "a" * (MAX_CHARACTERS + 1)},
            "structured.regex has 131,073 characters; it may have 131,072",
        ),
        ({"regex": "a", "after": ""}, "structured.after='' must be a text"),
    ],
)
def test_what_is_no_form(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        Structured(**given)
    assert sentence in str(refused.value)


def test_a_schema_is_the_same_as_text_and_as_python_has_it() -> None:
    assert Structured(json={"type": "object"}) == Structured(json='{ "type":  "object" }')
    assert hash(Structured(json={"type": "object"})) == hash(Structured(json='{"type": "object"}'))
    assert Structured(choice=["a", "b"]).kind == "choice" and Structured(choice=["a", "b"]).text == ("a", "b")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ignore_eos": True}, "ignore_eos is not for structured answers"),
        ({"min_tokens": 3}, "min_tokens is not for structured answers"),
    ],
)
def test_a_form_says_itself_when_it_ends(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SamplingParams(structured=Structured(regex="a"), **options)
    with pytest.raises(ValueError, match="must be a Structured, or None"):
        SamplingParams(structured="a")  # type: ignore[arg-type]
