"""Grammars of answers that must call: what they let through is what is read, in every format."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tests.random_model import CONFIG, IM_START, random_model
from tests.text.calls import joined

from holdfast import LLM, SamplingParams, Structured
from holdfast.grammar import GrammarError, Grammars
from holdfast.text import AnswerReader, Tokenizer, Tool, ToolFormat
from holdfast.text.tools import BareJson, ListedJson, Pythonic, Sections, TaggedJson, TaggedParameters

SCHEMAS: dict[str, dict[str, Any]] = {
    "gauge": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "enum": ["low", "high, or not"]},
            "hours": {"type": "integer", "minimum": 1, "maximum": 48},
            "unit": {"$ref": "#/$defs/unit"},
            "deep": {"type": "boolean"},
        },
        "required": ["hours"],
        "additionalProperties": False,
        "$defs": {"unit": {"enum": ["m", "ft", None]}},
    },
    "sail.to": {
        "type": "object",
        "properties": {"course": {"type": "array", "items": {"enum": [0, 90]}, "minItems": 1, "maxItems": 2}},
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = tuple(Tool(name, schema) for name, schema in SCHEMAS.items())


class PythonicTokens(Pythonic):
    """Whose opening is a special token."""

    opening = "<|im_start|>"


FORMATS: list[ToolFormat] = [
    *(TaggedJson(), TaggedParameters(), Pythonic(), PythonicTokens(), Sections(), BareJson()),
    ListedJson("TOOLCALL"),
]


def mark(text: str) -> str:
    return f"<[{IM_START}]>" if text == "<|im_start|>" else json.dumps(text)


def test_whatever_is_drawn_is_a_call() -> None:
    llm = LLM(random_model(), max_num_seqs=16, max_model_len=640)
    asked = [(format, several, seed) for format in FORMATS for several in (False, True) for seed in range(3)]
    params = [
        SamplingParams(
            structured=Structured(grammar=format.grammar(TOOLS, mark, several=several)),
            max_tokens=600,
            temperature=3.0,
            seed=seed,
        )
        for format, several, seed in asked
    ]
    names, numbers = set(), []
    for output, (format, several, _) in zip(llm.generate(["Tide"] * len(asked), params), asked, strict=True):
        assert output.finish_reason == "stop", output.text
        text = llm.tokenizer.decode(output.token_ids[:-1], skip_special_tokens=False)
        parts = AnswerReader(calls=format, tools=TOOLS).take(text, final=True)
        calls = joined(parts)
        assert all(part.call for part in parts) and (several or len(calls) == 1), text
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
        names |= {name for name, _ in calls}
        numbers.append(len(calls))
    assert names == set(SCHEMAS) and max(numbers) > 2


@pytest.fixture(scope="module")
def accepts() -> Any:
    grammars, tokenizer = Grammars(random_model(), CONFIG["vocab_size"]), Tokenizer.from_dir(random_model())

    def accepts(grammar: str, text: str) -> bool:
        matcher = grammars.matcher(Structured(grammar=grammar))._matcher
        tokens = tokenizer.encode(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    return accepts


def test_a_free_text_ends_at_its_mark(accepts: Any) -> None:
    tool = Tool(
        "say", {"properties": {"what": {"type": "string"}, "to": {"type": "string"}}, "required": ["what"]}
    )
    grammar = TaggedParameters().grammar([tool], mark, several=False)
    begin, end = "<tool_call>\n<function=say>\n<parameter=what>\n", "</function>\n</tool_call>"
    assert accepts(grammar, begin + 'Two\n"lines" </b>\n</parameter>\n' + end)
    assert accepts(grammar, begin + "x\n</parameter>\n<parameter=to>\ny\n</parameter>\n" + end)
    assert not accepts(grammar, begin + "x\n</parameter>\n<parameter=other>\ny\n</parameter>\n" + end)
    assert not accepts(grammar, "<tool_call>\n<function=say>\n" + end)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: type(format).__name__)
def test_no_schema_of_a_tool_breaks_the_making_of_a_grammar(format: ToolFormat) -> None:
    """Which is the server's; whether it can be followed is for the engine to say."""
    for parameters in (
        {"properties": {"a": True, "b": False}, "required": ["b"]},
        {"properties": ["a"], "required": "a"},
        {"properties": {"a": {"type": "string", "enum": 3}, "b": {"uniqueItems": False}}, "required": 3},
        {"properties": None, "required": None, "$defs": {}},
    ):
        assert "start:" in format.grammar([Tool("f", parameters)], json.dumps, several=True)


@pytest.mark.parametrize(
    ("format", "place"),
    [
        (TaggedJson(), "tools.tag.properties.arguments.properties.x"),
        (TaggedParameters(), "tools.tag.x"),
        (Pythonic(), "tools.tag.x"),
        (Sections(), "tools.tag.properties.x"),
        (BareJson(), "tools.tag.properties.parameters.properties.x"),
    ],
)
def test_a_tool_that_cannot_be_followed_is_named(format: ToolFormat, place: str) -> None:
    unique = {"properties": {"x": {"type": "array", "uniqueItems": True}}, "title": "Tag"}
    form = Structured(grammar=format.grammar([*TOOLS, Tool("tag", unique)], json.dumps, several=True))
    with pytest.raises(GrammarError) as refused:
        Grammars(random_model(), CONFIG["vocab_size"]).check(form)
    assert str(refused.value) == f'{place}: Unimplemented keys: ["uniqueItems"]'


@pytest.mark.parametrize(
    ("arguments", "good"),
    [
        ("b=1", True),
        ("a=1, b=2", True),
        ("a=1, b=2, c=3, d=4", True),
        ("b=2, d=4", True),
        ("", False),
        ("a=1", False),
        ("b=1, a=2", False),
        ("b=1,", False),
    ],
)
def test_arguments_by_name_may_be_left_out_in_order(accepts: Any, arguments: str, good: bool) -> None:
    one = {"enum": [1, 2, 3, 4]}
    tool = Tool("f", {"properties": dict.fromkeys("abcd", one), "required": ["b"]})
    grammar = Pythonic().grammar([tool], json.dumps, several=False)
    assert accepts(grammar, f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>") is good
