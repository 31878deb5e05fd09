"""Forms, tools and thoughts over HTTP: the official client's own helpers, unmodified."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

from holdfast import LLM, SamplingParams, Structured
from holdfast.server.protocol import ChatRequest, decode, plain_messages

MESSAGES: list[Any] = [{"role": "user", "content": "When is high water?"}]
COMMON: dict[str, Any] = {
    "model": "tiny",
    "messages": MESSAGES,
    "max_tokens": 300,
    "temperature": 0.7,
    "seed": 5,
}


class Tide(pydantic.BaseModel):
    kind: Literal["ebb", "flood"]
    hour: int = pydantic.Field(ge=0, le=23)
    gauges: list[Literal["A", "B"]] = pydantic.Field(max_length=3)


class Gauge(pydantic.BaseModel):
    """Reads a gauge."""

    name: str = pydantic.Field(max_length=8)
    hours: int = pydantic.Field(ge=1, le=48)


class Sail(pydantic.BaseModel):
    """Sets sail."""

    to: Literal["Bergen", "Stavanger"]


TOOLS: Any = [openai.pydantic_function_tool(Gauge), openai.pydantic_function_tool(Sail)]
SCHEMAS = {"Gauge": Gauge, "Sail": Sail}
LONG = {"name": "f", "parameters": {"properties": {"x": {"enum": ["x" * 150_000]}}}}
UNIQUE = {"name": "f", "parameters": {"properties": {"x": {"type": "array", "uniqueItems": True}}}}


def test_parse_gives_the_pydantic_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**COMMON, response_format=Tide)
    assert isinstance(answer.choices[0].message.parsed, Tide) and answer.choices[0].finish_reason == "stop"


def test_a_stream_is_parsed_as_it_grows(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**COMMON, response_format=Tide) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Tide) and "content.done" in kinds
    whole = client.chat.completions.parse(**COMMON, response_format=Tide)
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_any_object(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**COMMON, response_format={"type": "json_object"})
    text = answer.choices[0].message.content
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        ({"guided_regex": r"\d{2}:\d{2}"}, r"\d{2}:\d{2}"),
        ({"guided_choice": ["ebb", "flood"]}, "ebb|flood"),
        ({"guided_grammar": 'start: "x" "y"~2..4'}, "xy{2,4}"),
        ({"guided_grammar": 'root ::= "x" y\ny ::= "y"{2,4}'}, "xy{2,4}"),
        ({"guided_json": {"enum": [1, 2]}}, "[12]"),
        ({"guided_json": '{"enum": [1, 2]}'}, "[12]"),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"structured_outputs": {"choice": ["ebb", "flood"]}}, "ebb|flood"),
    ],
)
def test_guided_options_in_both_endpoints(
    client: openai.OpenAI, option: dict[str, Any], pattern: str
) -> None:
    chat = client.chat.completions.create(**COMMON, extra_body=option)
    assert re.fullmatch(pattern, chat.choices[0].message.content)
    text = client.completions.create(model="tiny", prompt="Tide:", max_tokens=40, seed=3, extra_body=option)
    assert re.fullmatch(pattern, text.choices[0].text) and text.choices[0].finish_reason == "stop"


def test_the_same_tokens_as_offline(client: openai.OpenAI, offline: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.7, seed=5, structured=Structured(regex="[a-f]{4,9}"))
    [expected] = offline.chat(MESSAGES, params)
    answer = client.chat.completions.create(
        **COMMON | {"max_tokens": 40}, extra_body={"guided_regex": "[a-f]{4,9}"}
    )
    assert answer.choices[0].message.content == expected.text


def _checked(call: Any) -> str:
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, SCHEMAS[call.function.name].model_json_schema())
    assert call.id and call.type == "function"
    return call.function.name


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_is_required(client: openai.OpenAI, parallel: bool) -> None:
    options = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel}
    answer = client.chat.completions.parse(**COMMON, **options)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert all(_checked(call) in SCHEMAS for call in choice.message.tool_calls)
    assert all(
        isinstance(call.function.parsed_arguments, (Gauge, Sail)) for call in choice.message.tool_calls
    )
    assert parallel or len(choice.message.tool_calls) == 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_call_that_is_named(client: openai.OpenAI, name: str) -> None:
    named = {"type": "function", "function": {"name": name}}
    answer = client.chat.completions.create(**COMMON, tools=TOOLS, tool_choice=named)
    assert [_checked(call) for call in answer.choices[0].message.tool_calls] == [name]


def test_calls_are_streamed(client: openai.OpenAI) -> None:
    options = COMMON | {"tools": TOOLS, "tool_choice": "required"}
    whole = client.chat.completions.create(**options).choices[0]
    names: list[str] = []
    arguments: list[list[str]] = []
    for chunk in client.chat.completions.create(**options, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.function.name:
                assert call.id and call.type == "function" and call.index == len(names)
                names.append(call.function.name)
                arguments.append([])
            assert call.index == len(names) - 1 and bool(call.id) == bool(call.function.name)
            arguments[-1].append(call.function.arguments)
        assert not chunk.choices[0].delta.content
        reason = chunk.choices[0].finish_reason
    assert reason == "tool_calls" and max(map(len, arguments)) > 3, "arguments come while they are written"
    expected = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert list(zip(names, map("".join, arguments), strict=True)) == expected


def test_the_clients_helper_reads_the_pieces(client: openai.OpenAI) -> None:
    options = COMMON | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    with client.chat.completions.stream(**options) as stream:
        kinds = [event.type for event in stream]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, (Gauge, Sail))
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert kinds.count("tool_calls.function.arguments.done") == 1


def test_tools_reach_the_model_and_none_hides_them(client: openai.OpenAI) -> None:
    used = [
        client.chat.completions.create(**COMMON | {"max_tokens": 1}, tools=TOOLS, tool_choice=choice).usage
        for choice in ("auto", "none")
    ]
    assert used[0].prompt_tokens > used[1].prompt_tokens + 50


def test_tools_are_counted_before_they_are_sent(client: openai.OpenAI) -> None:
    asked = {"messages": MESSAGES, "tools": TOOLS}
    counted = client.post("/../tokenize", cast_to=object, body=asked)
    used = client.chat.completions.create(**COMMON | {"max_tokens": 1}, tools=TOOLS).usage
    assert counted["count"] == used.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="tools is not for it to set"):
        client.post("/../tokenize", cast_to=object, body=asked | {"chat_template_kwargs": {"tools": []}})


def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    options = COMMON | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    said = client.chat.completions.create(**options).choices[0].message
    messages = [
        *MESSAGES,
        said.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "3 m"},
    ]
    answer = client.chat.completions.create(**COMMON | {"messages": messages, "max_tokens": 5}, tools=TOOLS)
    assert answer.usage.prompt_tokens > 100 and answer.choices[0].finish_reason == "length"


def test_templates_get_arguments_as_values() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "Sail", "arguments": '{"to": "Bergen"}'}}
    body = json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]})
    [message] = plain_messages(decode(ChatRequest, body.encode()).messages)
    assert message["tool_calls"][0]["function"]["arguments"] == {"to": "Bergen"} and message["content"] == ""


def test_thoughts_come_first_and_apart(client: openai.OpenAI) -> None:
    """The tiny model never ends its thoughts by itself, so it is made to want to."""
    options = COMMON | {"max_tokens": 60, "temperature": 0}
    extra = {"chat_template_kwargs": {"enable_thinking": True}, "guided_choice": ["ebb", "flood"]}
    bias = {ord("<"): 100.0}
    cut = client.chat.completions.create(**options, extra_body=extra).choices[0]
    assert cut.finish_reason == "length" and not cut.message.content and cut.message.reasoning_content
    streamed = ""
    for chunk in client.chat.completions.create(**options, extra_body=extra, stream=True):
        assert not chunk.choices[0].delta.content
        streamed += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
    assert streamed == cut.message.reasoning_content
    with pytest.raises(openai.BadRequestError, match="an answer has one form"):
        client.chat.completions.create(
            **options, logit_bias=bias, response_format={"type": "json_object"}, extra_body=extra
        )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tool_choice": "required"}, "tool_choice asks for a call, and there are no tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "there is no tool 'x'",
        ),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools: 'Gauge' is there twice"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "function.name"),
        (
            {"tools": [{"type": "function", "function": LONG}], "tool_choice": "required"},
            "tools has 150,",
        ),
        (
            {"tools": [{"type": "function", "function": UNIQUE}], "tool_choice": "required"},
            'tools.f.properties.arguments.properties.x: Unimplemented keys: ["uniqueItems"]',
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format has no json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objct"}}}},
            "structured.json: Invalid type: objct",
        ),
        ({"extra_body": {"guided_regex": "a["}}, "structured.regex: at 1(8): invalid regex"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice.choice=[] must be a list"),
        (
            {"extra_body": {"guided_regex": "a", "guided_choice": ["a"]}},
            "guided_regex and guided_choice are both",
        ),
        ({"extra_body": {"structured_outputs": {"regx": "a"}}}, "regx"),
        ({"extra_body": {"guided_decoding_backend": "x"}}, "forms are compiled by llguidance alone"),
        ({"extra_body": {"ebnf": "x"}}, "ebnf is not supported: it is called guided_grammar"),
        ({"extra_body": {"guided_regex": "a", "min_tokens": 3}}, "min_tokens is not for structured answers"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
            "arguments of a tool call must be JSON",
        ),
    ],
)
def test_what_is_wrong_is_refused(client: openai.OpenAI, options: dict[str, Any], sentence: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**COMMON | options, stream=stream)
        assert sentence in refused.value.message
