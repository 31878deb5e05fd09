"""Calls of tools, in the forms that models were trained to write them.

A format says where calls begin and end in an answer, and who reads them; it has the grammar of an answer that must
call. docs/structured.md lists whose they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .arguments import ParameterCalls, PythonicCalls, is_text
from .calls import CallReader, JsonCalls, Schema, SectionCalls, Tool
from .schemas import WHITE_SPACE, without_notes

MAX_CALLS = 8
"""In an answer that must call: a model that has lost its way would go on for ever."""


class ToolFormat(Protocol):
    opening: str
    """Where calls begin; "" if they are the whole answer, which then begins with a brace."""
    closing: str
    marks: tuple[str, ...]
    """Texts that the format is made of, some of which may be special tokens."""

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        """Of what stands between an opening and its closing."""

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        """Of an answer that calls one of these, in Lark's syntax."""


Mark = Callable[[str], str]
"""How a grammar writes a mark: some are special tokens."""


class TaggedJson:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, one for each call."""

    opening, closing = "<tool_call>", "</tool_call>"
    marks: tuple[str, ...] = (opening, closing)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return JsonCalls()

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        call = f'{mark(self.opening)} "\\n" body "\\n" {mark(self.closing)}'
        return _repeated(several, ' "\\n"') + f"\ncall: {call}\nbody: {_call_json(tools, 'arguments')}"


class TaggedParameters(TaggedJson):
    """<function=name> and <parameter=name> inside the tags, values on lines of their own. A
    value is a text as it stands if the tool says so, and JSON otherwise."""

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return ParameterCalls(tools)

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        functions = [f"f{number}" for number in range(len(tools))]
        call = f'{mark(self.opening)} "\\n" ({" | ".join(functions)}) "\\n" {mark(self.closing)}'
        rules = [
            _repeated(several, ' "\\n"'),
            f"call: {call}",
            'text[suffix="\\n</parameter>\\n"]: /(.|\\n)*/',
        ]
        for function, tool in zip(functions, tools, strict=True):
            parts = [_literal(f"<function={tool.name}>\n")]
            for number, (name, schema) in enumerate(tool.properties.items()):
                value = f"{function}_{number}"
                rules.append(f"{value}: {self._value_rule(name, schema, tool)}")
                parts.append(value if name in tool.required else f"{value}?")
            rules.append(f"{function}: {' '.join(parts)} {_literal('</function>')}")
        return "\n".join(rules)

    @staticmethod
    def _value_rule(name: str, schema: Schema, tool: Tool) -> str:
        before, after = _literal(f"<parameter={name}>\n"), _literal("\n</parameter>\n")
        if not is_text(schema):
            return f"{before} {_json(f'{tool.name}.{name}', _part_of(tool, schema))} {after}"
        if isinstance(options := schema.get("enum"), list) and options:
            return f"{before} ({' | '.join(_literal(str(option)) for option in options)}) {after}"
        return f"{before} text"


class ListedJson:
    """One list of {"name": ..., "arguments": {...}} between tags."""

    def __init__(self, tag: str) -> None:
        self.opening, self.closing = f"<{tag}>", f"</{tag}>"
        self.marks: tuple[str, ...] = (self.opening, self.closing)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return JsonCalls()

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        more = f'(", " call)~0..{MAX_CALLS - 1}' if several else ""
        start = f'start: {mark(self.opening)} "[" call {more} "]" {mark(self.closing)}'
        return f"{start}\ncall: {_call_json(tools, 'arguments')}"


class Pythonic:
    """A list of calls as Python writes them, between two tokens."""

    opening, closing = "<|tool_call_start|>", "<|tool_call_end|>"
    marks: tuple[str, ...] = (opening, closing)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return PythonicCalls()

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        functions = [f"f{number}" for number in range(len(tools))]
        more = f'(", " call)~0..{MAX_CALLS - 1}' if several else ""
        rules = [
            f'start: {mark(self.opening)} "[" call {more} "]" {mark(self.closing)}',
            f"call: {' | '.join(functions)}",
        ]
        for function, tool in zip(functions, tools, strict=True):
            rules += _python_call(function, tool)
        return "\n".join(rules)


class Sections:
    """A section of calls, each with a name, a number and JSON, between tokens of its own."""

    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    begin, argument, end = SectionCalls.begin, SectionCalls.argument, SectionCalls.end
    marks: tuple[str, ...] = (opening, closing, begin, argument, end)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return SectionCalls()

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        start = f"start: {mark(self.opening)} call~1..{MAX_CALLS if several else 1} {mark(self.closing)}"
        rules = [
            start,
            f"call: {' | '.join(f'f{number}' for number in range(len(tools)))}",
            "NUMBER: /[0-9]{1,3}/",
        ]
        for number, tool in enumerate(tools):
            name = _literal(f"functions.{tool.name}:")
            arguments = f"{mark(self.argument)} {_json(tool.name, tool.parameters)}"
            rules.append(f"f{number}: {mark(self.begin)} {name} NUMBER {arguments} {mark(self.end)}")
        return "\n".join(rules)


class BareJson:
    """The whole answer is {"name": ..., "parameters": {...}}, several parted by semicolons."""

    opening, closing = "", ""
    marks: tuple[str, ...] = ("<|python_tag|>",)

    def reader(self, tools: Sequence[Tool]) -> CallReader:
        return JsonCalls()

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        return f"start: {_call_json(tools, 'parameters')}"


def tool_format(template: str, is_token: Callable[[str], bool]) -> ToolFormat | None:
    """What a template teaches, or the vocabulary has tokens for. None if it does not speak of tools, or in a way that
    is not known here."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        return TaggedParameters() if "<function=" in template else TaggedJson()
    known: list[ToolFormat] = [Sections(), Pythonic(), *map(ListedJson, ("TOOLCALL", "tool_calls"))]
    for format in known:
        if format.opening in template or is_token(format.opening):
            return format
    return BareJson() if '"parameters"' in template else None


# --- grammars ---


def _repeated(several: bool, between: str) -> str:
    return f"start: call ({between} call)~0..{MAX_CALLS - 1}" if several else "start: call"


def _call_json(tools: Sequence[Tool], arguments: str) -> str:
    """{"name": ..., arguments: {...}}, of any of the tools."""
    return "(" + " | ".join(_json(tool.name, _whole(tool, arguments)) for tool in tools) + ")"


def _whole(tool: Tool, arguments: str) -> dict[str, Any]:
    parameters, shared = _apart(tool)
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, arguments: parameters},
        "required": ["name", arguments],
        "additionalProperties": False,
        **shared,
    }


def _apart(tool: Tool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool's schema, and the definitions that its references are to: they go by the root."""
    shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return {key: value for key, value in tool.parameters.items() if key not in shared}, shared


def _part_of(tool: Tool, schema: Schema) -> dict[str, Any]:
    return {**_apart(tool)[1], **schema}


def _json(name: str, schema: Schema) -> str:
    """name: what a refusal says it is about"""
    return "%json " + json.dumps(
        {**without_notes(schema), "title": f"tools.{name}", "x-guidance": WHITE_SPACE}
    )


def _python_call(function: str, tool: Tool) -> list[str]:
    """Arguments by name, in the order of the schema; those that are not required may be left out."""
    named = list(tool.properties.items())
    needed = [name in tool.required for name, _ in named]

    def following(place: int) -> str:
        """What may come at `place` or later: up to the next that is required."""
        stop = next((i for i in range(place, len(named)) if needed[i]), len(named) - 1)
        return " | ".join(f"{function}_{i}" for i in range(place, stop + 1))

    rules = []
    for place, (name, schema) in enumerate(named):
        more, must = following(place + 1), any(needed[place + 1 :])
        rest = f' (", " ({more})){"" if must else "?"}' if more else ""
        rules.append(
            f"{function}_{place}: {_literal(name + '=')} {_json(f'{tool.name}.{name}', _part_of(tool, schema))}{rest}"
        )
    first = following(0)
    arguments = f" ({first}){'' if any(needed) else '?'}" if first else ""
    return [f'{function}: {_literal(tool.name + "(")}{arguments} ")"', *rules]


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
