"""Answers are read the same in whatever pieces they arrive, in every format that models write calls in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.calls import joined

from holdfast.text import Tool
from holdfast.text.reader import AnswerReader, Part
from holdfast.text.tools import (
    BareJson,
    ListedJson,
    Pythonic,
    Sections,
    TaggedJson,
    TaggedParameters,
    ToolFormat,
    tool_format,
)

TOOLS = (
    Tool(
        "weather", {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    ),
    Tool("add", {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}),
)
WEATHER = ("weather", {"city": "Bergen", "days": 3})
ADD = ("add", {"a": 1.5, "b": -2})
NO_NAMES = "<|tool_call_start|>[add(1, 2)]<|tool_call_end|>"
NO_PYTHON = "<|tool_call_start|>import os<|tool_call_end|>"

Calls = list[tuple[str, Any]]
ANSWERS: dict[str, tuple[ToolFormat, str, str, list[tuple[str, Any]]]] = {
    "json": (
        TaggedJson(),
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bergen", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1.5, "b": -2}}\n</tool_call>',
        "Let me see.",
        [WEATHER, ADD],
    ),
    "json as text": (
        TaggedJson(),
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1.5, \\"b\\": -2}"}</tool_call>',
        "",
        [ADD],
    ),
    "parameters": (
        TaggedParameters(),
        "Hm.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nBergen\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        "Hm.",
        [WEATHER],
    ),
    "parameters, a text that looks like a number": (
        TaggedParameters(),
        "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
        "",
        [("weather", {"city": "12"})],
    ),
    "pythonic": (
        Pythonic(),
        "<|tool_call_start|>[weather(city='Bergen', days=3), add(a=1.5, b=-2)]<|tool_call_end|>Wait for it.",
        "Wait for it.",
        [WEATHER, ADD],
    ),
    "pythonic with JSON's words": (
        Pythonic(),
        "<|tool_call_start|>[f(x=true, y=[null, False], z={'k': \"\\ud83d\\ude00\"})]<|tool_call_end|>",
        "",
        [("f", {"x": True, "y": [None, False], "z": {"k": "\U0001f600"}})],
    ),
    "sections": (
        Sections(),
        "Both.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Bergen", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.add:1'
        '<|tool_call_argument_begin|>{"a": 1.5, "b": -2}<|tool_call_end|><|tool_calls_section_end|>',
        "Both.",
        [WEATHER, ADD],
    ),
    "bare": (BareJson(), '{"name": "weather", "parameters": {"city": "Bergen", "days": 3}}', "", [WEATHER]),
    "bare, two": (
        BareJson(),
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Bergen", "days": 3}}; '
        '{"name": "add", "parameters": {"a": 1.5, "b": -2}}',
        "",
        [WEATHER, ADD],
    ),
    "a list": (
        ListedJson("TOOLCALL"),
        '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Bergen", "days": 3}}, '
        '{"name": "add", "arguments": {"a": 1.5, "b": -2}}]</TOOLCALL>',
        "",
        [WEATHER, ADD],
    ),
    "a list with something else": (
        ListedJson("TOOLCALL"),
        '<TOOLCALL>[{"name": "add", "arguments": {}}, 3]</TOOLCALL> so',
        "so",
        [("add", {})],
    ),
    "another order": (
        ListedJson("TOOLCALL"),
        '<TOOLCALL>[{"arguments": {"a": 1.5, "b": -2}, "name": "add"}, {"name": "stop"}]</TOOLCALL>',
        "",
        [ADD, ("stop", {})],
    ),
    "arguments and more": (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": {"x": ["}\\"]", {}]}, "id": {"n": 3}}</tool_call> so',
        "so",
        [("f", {"x": ['}"]', {}]})],
    ),
    "JSON where parameters are expected": (
        TaggedParameters(),
        '<tool_call>\n{"name": "add", "arguments": {"a": 1.5, "b": -2}}\n</tool_call>',
        "",
        [ADD],
    ),
    "parameters, none": (
        TaggedParameters(),
        "<tool_call><function=stop>\n</function></tool_call><tool_call><function=stop></tool_call>",
        "",
        [("stop", {}), ("stop", {})],
    ),
    "pythonic, brackets and commas in texts": (
        Pythonic(),
        """<|tool_call_start|>[go-to(x="a, )] \\" b", y=[{'k': (1, 2)}, ","],), stop()]<|tool_call_end|>""",
        "",
        [("go-to", {"x": 'a, )] " b', "y": [{"k": [1, 2]}, ","]}), ("stop", {})],
    ),
    "an empty block": (TaggedJson(), "<tool_call></tool_call>", "<tool_call></tool_call>", []),
    "no call": (TaggedJson(), "The tide < 3 m.\n<tool is a word. ", "The tide < 3 m.\n<tool is a word. ", []),
    "broken": (TaggedJson(), "<tool_call>{oops</tool_call> well", "<tool_call>{oops</tool_call>well", []),
    "cut off": (TaggedJson(), 'So: <tool_call>{"name": "wea', 'So:<tool_call>{"name": "wea', []),
    "broken after arguments have begun": (
        TaggedJson(),
        'So: <tool_call>{"name": "add", "arguments": {"a": 1, oops</tool_call> well',
        "So:well",
        [("add", '{"a": 1, oops')],
    ),
    "cut off after arguments have begun": (
        Sections(),
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|> {"a": 1, ',
        "",
        [("add", '{"a": 1, ')],
    ),
    "parameters, a text of lines and marks": (
        TaggedParameters(),
        '<tool_call><function=weather><parameter=city>\n\n"a"\\\n</b>\n\n</parameter></function></tool_call>',
        "",
        [("weather", {"city": '\n"a"\\\n</b>\n'})],
    ),
    "parameters, empty texts": (
        TaggedParameters(),
        "<tool_call><function=weather><parameter=city></parameter></function></tool_call><tool_call>"
        "<function=weather><parameter=city>\n</parameter></function></tool_call>",
        "",
        [("weather", {"city": ""})] * 2,
    ),
    "parameters, cut off in a text": (
        TaggedParameters(),
        '<tool_call>\n<function=weather>\n<parameter=city>\nBer"gen\n',
        "",
        [("weather", '{"city": "Ber\\"gen')],
    ),
    "parameters, cut off": (
        TaggedParameters(),
        "<tool_call>\n<function=weather>\n<parameter=city>\nBergen\n</parameter>\n<parameter=days>\n3",
        "",
        [("weather", '{"city": "Bergen"')],
    ),
    "pythonic, broken": (
        Pythonic(),
        "<|tool_call_start|>[weather(city='Bergen', 3), add(a=1)]<|tool_call_end|>",
        "",
        [("weather", '{"city": "Bergen"')],
    ),
    "pythonic, no names": (Pythonic(), NO_NAMES, NO_NAMES, []),
    "broken python": (Pythonic(), NO_PYTHON, NO_PYTHON, []),
    "bare, but words": (BareJson(), "{this is no call}", "{this is no call}", []),
    "bare, words": (BareJson(), " <|python is a word", " <|python is a word", []),
}
every_answer = pytest.mark.parametrize(("format", "text", "content", "calls"), ANSWERS.values(), ids=ANSWERS)


def read(format: ToolFormat | None, pieces: Sequence[str], **options: Any) -> tuple[str, str, Calls]:
    """Thoughts, content and calls."""
    reader = AnswerReader(calls=format, tools=TOOLS, **options)
    parts: list[Part] = []
    for piece in pieces:
        parts += reader.take(piece)
    parts += reader.take("", final=True)
    calls = joined(parts)
    assert len(calls) == reader.num_calls
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts), calls


@every_answer
def test_in_one_piece_in_every_two_and_in_characters(
    format: ToolFormat, text: str, content: str, calls: Calls
) -> None:
    assert read(format, [text]) == ("", content, calls)
    for at in range(len(text)):
        assert read(format, [text[:at], text[at:]]) == ("", content, calls), at
    assert read(format, list(text)) == ("", content, calls)


@every_answer
def test_after_thoughts(format: ToolFormat, text: str, content: str, calls: Calls) -> None:
    for opened in (True, False):
        whole = ("" if opened else "<think>") + "\nFirst < this,\nthen that.\n</think>\n\n" + text
        expected = ("First < this,\nthen that.", content.lstrip(), calls)
        for pieces in ([whole], list(whole), [whole[:9], whole[9:31], whole[31:]]):
            assert read(format, pieces, thinks=True, thinking=opened) == expected
    assert read(format, list(text), thinks=True) == ("", content, calls), "it need not think"


WORDS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<", "<tool", " ", "\n", "tide", "</", "{}"),
    *('{"name": "add", "arguments": {}}', "<|tool_call_start|>", "<|tool_call_end|>", "add(a=1)"),
    *(
        '{"name": "add", "arguments": {',
        '"a": "}\\"{"',
        ", ",
        "}",
        "}",
        "]",
        "[",
        ";",
        "add(",
        "b='(,",
        "'",
        ")",
    ),
    *(
        "<function=weather>",
        "<parameter=city>\n",
        "\n</parameter>",
        "</function>",
        "<TOOLCALL>",
        "</TOOLCALL>",
    ),
    *(Sections.opening, Sections.begin, "functions.add:0", Sections.argument, Sections.end, Sections.closing),
)
FORMATS = (TaggedJson(), TaggedParameters(), Pythonic(), BareJson(), Sections(), ListedJson("TOOLCALL"))


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=9), data=st.data())
def test_any_text_in_any_pieces(words: list[str], data: st.DataObject) -> None:
    """Whatever a model writes: nothing depends on where it was cut."""
    text = "".join(words)
    format = data.draw(st.sampled_from([None, *FORMATS]))
    options = {"thinks": data.draw(st.booleans()), "thinking": data.draw(st.booleans())}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(format, pieces, **options) == read(format, [text], **options)


def test_what_shows_is_not_held_back() -> None:
    reader = AnswerReader(calls=TaggedJson(), tools=TOOLS)
    assert [part.content for part in reader.take("Low water <")] == ["Low water"]
    assert [part.content for part in reader.take("b> at six <tool")] == [" <b> at six"]
    assert reader.take("_call>{}") == []


@pytest.mark.parametrize(
    ("format", "text", "pieces"),
    [
        (
            TaggedJson(),
            '<tool_call>{"name": "weather", "arguments": {"city": "Bergen"}}</tool_call>',
            ["", *'{"city": "Bergen"}'],
        ),
        (
            ANSWERS["parameters"][0],
            ANSWERS["parameters"][1],
            ["", '{"city": "', *"Bergen", '"', ', "days": 3', "}"],
        ),
        (
            Pythonic(),
            "<|tool_call_start|>[weather(city='Bergen', days=3)]<|tool_call_end|>",
            ["", '{"city": "Bergen"', ', "days": 3', "}"],
        ),
    ],
    ids=["as it is written", "parameters", "pythonic"],
)
def test_arguments_come_while_they_are_written(format: ToolFormat, text: str, pieces: list[str]) -> None:
    reader = AnswerReader(calls=format, tools=TOOLS)
    calls = [part.call for char in text for part in reader.take(char) if part.call]
    assert [call.arguments for call in calls] == pieces
    assert [call.name for call in calls] == ["weather"] + [None] * (len(calls) - 1)


def test_one_call_if_one_is_wanted() -> None:
    format, text, content, calls = ANSWERS["json"]
    assert read(format, list(text), most=1) == ("", content, calls[:1])


def test_white_space_of_a_plain_answer_stays() -> None:
    text = "  low \n tide \n\n"
    for at in range(len(text)):
        assert read(None, [text[:at], text[at:]]) == ("", text, [])


@pytest.mark.parametrize(
    ("template", "tokens", "kind"),
    [
        ("{{ messages }}", ("<tool_call>",), None),
        ("{{ tools }}<tool_call>{{ call }}", (), TaggedJson),
        ("{{ tools }}<tool_call>\n<function=x>", (), TaggedParameters),
        ("{{ tools }}<|tool_calls_section_begin|>", (), Sections),
        ("List of tools: {{ tools }}", ("<|tool_call_start|>",), Pythonic),
        ('{{ tools }}{"name": .., "parameters": ..}', (), BareJson),
        ("{{ tools }}<TOOLCALL>[..]</TOOLCALL>", (), ListedJson),
        ("{{ tools }} call them somehow", (), None),
    ],
)
def test_the_format_is_the_templates(template: str, tokens: Sequence[str], kind: type | None) -> None:
    found = tool_format(template, lambda text: text in tokens)
    assert found is None if kind is None else type(found) is kind
