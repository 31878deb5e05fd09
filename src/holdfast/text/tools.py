"""Calls of tools, in the forms that models were trained to write them.

A format says where calls begin and end in an answer, reads them, and gives the grammar of an answer that must call.
docs/structured.md lists whose they are.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_CALLS = 8
"""In an answer that must call: a model that has lost its way would go on for ever."""
WHITE_SPACE = {"whitespace_pattern": r"\x20"}
"""Between the parts of JSON there may be a space. With more, such a model goes on for ever as well."""
Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: Schema
    """A JSON schema of an object."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str
    """A JSON object, as text."""
    id: str | None = None
    """Where the model gives one itself."""


class ToolFormat(Protocol):
    opening: str
    """Where calls begin; "" if they are the whole answer, which then begins with a brace."""
    closing: str
    marks: tuple[str, ...]
    """Texts that the format is made of, some of which may be special tokens."""

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        """What stands between opening and closing; None if that is no call."""

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        """Of an answer that calls one of these, in Lark's syntax."""


Mark = Callable[[str], str]
"""How a grammar writes a mark: some are special tokens."""


class TaggedJson:
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, one for each call."""

    opening, closing = "<tool_call>", "</tool_call>"
    marks: tuple[str, ...] = (opening, closing)

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        return _read_json(block, "arguments")

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        call = f'{mark(self.opening)} "\\n" body "\\n" {mark(self.closing)}'
        return _repeated(several, ' "\\n"') + f"\ncall: {call}\nbody: {_call_json(tools, 'arguments')}"


class TaggedParameters(TaggedJson):
    """<function=name> and <parameter=name> inside the tags, values on lines of their own. A
    value is a text as it stands if the tool says so, and JSON otherwise."""

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        if block.lstrip().startswith("{"):
            return super().read(block, tools)
        found = re.fullmatch(r"\s*<function=([^>\n]+)>(.*?)(</function>)?\s*", block, re.DOTALL)
        if found is None:
            return None
        name, body = found[1].strip(), found[2]
        given = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", body, re.DOTALL)
        schemas = next((_properties(tool) for tool in tools if tool.name == name), {})
        values = {key: _value(value, schemas.get(key, {})) for key, value in given}
        return [ToolCall(name, json.dumps(values, ensure_ascii=False))]

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
            for number, (name, schema) in enumerate(_properties(tool).items()):
                value = f"{function}_{number}"
                rules.append(f"{value}: {self._value_rule(name, schema, tool)}")
                parts.append(value if name in _required(tool) else f"{value}?")
            rules.append(f"{function}: {' '.join(parts)} {_literal('</function>')}")
        return "\n".join(rules)

    @staticmethod
    def _value_rule(name: str, schema: Schema, tool: Tool) -> str:
        before, after = _literal(f"<parameter={name}>\n"), _literal("\n</parameter>\n")
        if not _is_text(schema):
            return f"{before} {_json(schema, tool)} {after}"
        if options := schema.get("enum"):
            return f"{before} ({' | '.join(_literal(str(option)) for option in options)}) {after}"
        return f"{before} text"


class ListedJson:
    """One list of {"name": ..., "arguments": {...}} between tags."""

    def __init__(self, tag: str) -> None:
        self.opening, self.closing = f"<{tag}>", f"</{tag}>"
        self.marks: tuple[str, ...] = (self.opening, self.closing)

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        return _read_json(block, "arguments")

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        more = f'(", " call)~0..{MAX_CALLS - 1}' if several else ""
        start = f'start: {mark(self.opening)} "[" call {more} "]" {mark(self.closing)}'
        return f"{start}\ncall: {_call_json(tools, 'arguments')}"


class Pythonic:
    """A list of calls as Python writes them, between two tokens."""

    opening, closing = "<|tool_call_start|>", "<|tool_call_end|>"
    marks: tuple[str, ...] = (opening, closing)

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        try:
            tree = ast.parse(block.strip(), mode="eval").body
            listed = tree.elts if isinstance(tree, ast.List) else [tree]
            return [self._call(node) for node in listed] or None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @staticmethod
    def _call(node: ast.expr) -> ToolCall:
        if not isinstance(node, ast.Call) or node.args:
            raise ValueError("not a call with named arguments")
        values = {_named(keyword.arg): _literal_value(keyword.value) for keyword in node.keywords}
        return ToolCall(ast.unparse(node.func), json.dumps(values, ensure_ascii=False))

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
    begin, argument, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    marks: tuple[str, ...] = (opening, closing, begin, argument, end)

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        pattern = f"{re.escape(self.begin)}(.*?){re.escape(self.argument)}(.*?)(?:{re.escape(self.end)}|$)"
        calls = []
        for given, arguments in re.findall(pattern, block, re.DOTALL):
            if _loaded(arguments) is None:
                return None
            name = given.strip().removeprefix("functions.").rpartition(":")[0] or given.strip()
            calls.append(ToolCall(name, arguments.strip(), given.strip()))
        return calls or None

    def grammar(self, tools: Sequence[Tool], mark: Mark, *, several: bool) -> str:
        start = f"start: {mark(self.opening)} call~1..{MAX_CALLS if several else 1} {mark(self.closing)}"
        rules = [
            start,
            f"call: {' | '.join(f'f{number}' for number in range(len(tools)))}",
            "NUMBER: /[0-9]{1,3}/",
        ]
        for number, tool in enumerate(tools):
            name = _literal(f"functions.{tool.name}:")
            arguments = f"{mark(self.argument)} {_json(tool.parameters, tool)}"
            rules.append(f"f{number}: {mark(self.begin)} {name} NUMBER {arguments} {mark(self.end)}")
        return "\n".join(rules)


class BareJson:
    """The whole answer is {"name": ..., "parameters": {...}}, several parted by semicolons."""

    opening, closing = "", ""
    marks: tuple[str, ...] = ("<|python_tag|>",)

    def read(self, block: str, tools: Sequence[Tool]) -> list[ToolCall] | None:
        calls: list[ToolCall] = []
        decoder, rest = json.JSONDecoder(), block.removeprefix("<|python_tag|>").strip()
        while rest:
            try:
                _, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                return None
            if (one := _read_json(rest[:end], "parameters")) is None:
                return None
            calls += one
            rest = rest[end:].lstrip("; \n\t")
        return calls or None

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
    forms = [_whole(tool, arguments) for tool in tools]
    return "(" + " | ".join(f"%json {json.dumps(form)}" for form in forms) + ")"


def _whole(tool: Tool, arguments: str) -> dict[str, Any]:
    parameters, shared = _apart(tool)
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, arguments: parameters},
        "required": ["name", arguments],
        "additionalProperties": False,
        "x-guidance": WHITE_SPACE,
        **shared,
    }


def _apart(tool: Tool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool's schema, and the definitions that its references are to: they go by the root."""
    shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    return {key: value for key, value in tool.parameters.items() if key not in shared}, shared


def _json(schema: Schema, tool: Tool) -> str:
    return "%json " + json.dumps({**_apart(tool)[1], **schema, "x-guidance": WHITE_SPACE})


def _python_call(function: str, tool: Tool) -> list[str]:
    """Arguments by name, in the order of the schema; those that are not required may be left out."""
    named = list(_properties(tool).items())
    needed = [name in _required(tool) for name, _ in named]

    def following(place: int) -> str:
        """What may come at `place` or later: up to the next that is required."""
        stop = next((i for i in range(place, len(named)) if needed[i]), len(named) - 1)
        return " | ".join(f"{function}_{i}" for i in range(place, stop + 1))

    rules = []
    for place, (name, schema) in enumerate(named):
        more, must = following(place + 1), any(needed[place + 1 :])
        rest = f' (", " ({more})){"" if must else "?"}' if more else ""
        rules.append(f"{function}_{place}: {_literal(name + '=')} {_json(schema, tool)}{rest}")
    first = following(0)
    arguments = f" ({first}){'' if any(needed) else '?'}" if first else ""
    return [f'{function}: {_literal(tool.name + "(")}{arguments} ")"', *rules]


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- values ---


def _read_json(text: str, arguments: str) -> list[ToolCall] | None:
    """One call, or a list of them."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = [_told(each, arguments) for each in (told if isinstance(told, list) else [told])]
    return [call for call in calls if call] if calls and all(calls) else None


def _told(told: Any, arguments: str) -> ToolCall | None:
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    given = told.get(arguments, told.get("arguments", told.get("parameters", {})))
    if isinstance(given, str):  # some write the object as text
        given = _loaded(given)
    if not isinstance(given, dict):
        return None
    return ToolCall(told["name"], json.dumps(given, ensure_ascii=False))


def _loaded(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _properties(tool: Tool) -> Mapping[str, Schema]:
    return tool.parameters.get("properties") or {}


def _required(tool: Tool) -> Sequence[str]:
    return tool.parameters.get("required") or ()


def _is_text(schema: Schema) -> bool:
    return schema.get("type") == "string"


def _value(text: str, schema: Schema) -> Any:
    if _is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _named(name: str | None) -> str:
    if name is None:
        raise ValueError("an argument without a name")
    return name


def _literal_value(node: ast.expr) -> Any:
    """As Python writes it, or as JSON does."""
    match node:
        case ast.Constant(value=str() as text):
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case ast.Constant(value=bool() | int() | float() | None as value):
            return value
        case ast.Name(id="true" | "false" | "null" as name):
            return {"true": True, "false": False, "null": None}[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_literal_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {str(_literal_value(k)): _literal_value(v) for k, v in zip(keys, values, strict=True) if k}
    raise ValueError("not a value")
