"""Calls of tools, read while they are written. What was handed out is never taken back.

A reader is given what stands between a format's opening and closing, in whatever pieces it comes. Arguments leave it
as JSON: as the model wrote them, or one by one where the model writes something else.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Tool:
    name: str
    parameters: Schema
    """A JSON schema of an object."""

    @property
    def properties(self) -> Mapping[str, Schema]:
        return self.parameters.get("properties") or {}

    @property
    def required(self) -> Sequence[str]:
        return self.parameters.get("required") or ()


@dataclass(frozen=True)
class CallPiece:
    """A part of a call. The arguments of all of them, joined, are a JSON object if the call is whole."""

    arguments: str = ""
    name: str | None = None
    """Of the first part alone."""
    id: str | None = None
    """Where the model gives one itself."""


class CallReader:
    """A block in which no call begins is text. Where one does, whatever is no call is left out, and a call that
    breaks off keeps the arguments that it has."""

    def __init__(self) -> None:
        self.begun = False
        """A call has."""
        self.unread = ""
        """The block, until then."""
        self._text = ""  # what came and was not read

    def take(self, text: str, *, ended: bool = False) -> list[CallPiece]:
        """What the next piece of the block makes certain."""
        self._text += text
        pieces = list(self._read(ended))
        self.begun |= bool(pieces)
        self.unread = "" if self.begun else self.unread + text
        return pieces

    def _read(self, ended: bool) -> Iterator[CallPiece]:
        raise NotImplementedError

    def _skip(self, count: int) -> str:
        skipped, self._text = self._text[:count], self._text[count:]
        return skipped


class ArgumentsAsText(CallReader):
    """Calls whose arguments are JSON: they are handed out as they come, from the head of a call to the brace that
    closes them.

    head   what stands before arguments, up to their first brace; its group is the name
    outer  braces that the head has opened itself
    """

    def __init__(self, head: re.Pattern[str], outer: int) -> None:
        super().__init__()
        self._head, self._outer = head, outer
        self._nesting = _Nesting('"')
        self._until: int | None = (
            None  # the depth at which the arguments end, or what stands behind them does
        )

    def _read(self, ended: bool) -> Iterator[CallPiece]:
        while True:
            while self._until is not None:
                ends = (
                    place + 1 for place, c in enumerate(self._text) if self._nesting.take(c) == self._until
                )
                end = next(ends, None)
                part = self._skip(len(self._text) if end is None else end)
                if part and self._until == self._outer:
                    yield CallPiece(part)
                if end is None:
                    return
                self._until = 0 if self._until else None
            if (found := self._head.match(self._text)) is None:
                break
            self._skip(found.end())
            self._nesting, self._until = _Nesting('"', self._outer), self._outer
            yield self._begin(found[1].strip())
        if ended:
            yield from self._whole(self._text)

    def _begin(self, told: str) -> CallPiece:
        return CallPiece(name=told)

    def _whole(self, text: str) -> Iterator[CallPiece]:
        """What else may be said, once the block has ended."""
        return iter(())


class JsonCalls(ArgumentsAsText):
    """{"name": ..., "arguments": {...}}, one or several. In another order, or with arguments that are the text of
    an object, they are read when the block is whole."""

    HEAD = re.compile(
        r'(?:<\|python_tag\|>)?[\s,;\[]*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
    )

    def __init__(self) -> None:
        super().__init__(self.HEAD, outer=1)

    def _whole(self, text: str) -> Iterator[CallPiece]:
        pieces, rest = [], text.removeprefix("<|python_tag|>")
        while rest := rest.strip(" \n\t\r,;[]"):
            try:
                told, end = json.JSONDecoder().raw_decode(rest)
            except (ValueError, RecursionError):
                return
            if (piece := _told(told)) is None:
                return
            pieces.append(piece)
            rest = rest[end:]
        yield from pieces


class SectionCalls(ArgumentsAsText):
    """A name with a number, and JSON, between tokens."""

    begin, argument, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    HEAD = re.compile(
        rf"\s*(?:{re.escape(end)})?\s*{re.escape(begin)}([^<]+){re.escape(argument)}\s*(?=\{{)",
    )

    def __init__(self) -> None:
        super().__init__(self.HEAD, outer=0)

    def _begin(self, told: str) -> CallPiece:
        name = told.removeprefix("functions.").rpartition(":")[0] or told
        return CallPiece(name=name, id=told)


class ParameterCalls(CallReader):
    """<function=name> and <parameter=name>, a value on lines of its own: a text as it stands if the tool says so, and
    JSON otherwise. Handed out one by one. Some models write JsonCalls all the same."""

    FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
    PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
    END = re.compile(r"\s*</function>")

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__()
        self._tools = tools
        self._arguments: _Arguments | None = None
        self._json: JsonCalls | None = None

    def _read(self, ended: bool) -> Iterator[CallPiece]:
        if not self.begun and not self._json and self._text.lstrip().startswith("{"):
            self._json = JsonCalls()
        if self._json:
            yield from self._json.take(self._skip(len(self._text)), ended=ended)
            return
        while True:
            if self._arguments is None:
                if (found := self.FUNCTION.match(self._text)) is None:
                    return
                self._skip(found.end())
                name = found[1].strip()
                schemas = next((tool.properties for tool in self._tools if tool.name == name), {})
                self._arguments, self._schemas = _Arguments(), schemas
                yield CallPiece(name=name)
            if "</parameter>" in self._text and (found := self.PARAMETER.match(self._text)):
                yield self._arguments.next(found[1], _value(found[2], self._schemas.get(found[1], {})))
            elif (found := self.END.match(self._text)) or (ended and not self._text.strip()):
                yield self._arguments.end()
                self._arguments = None
                if found is None:
                    return
            else:
                return
            self._skip(found.end())


class PythonicCalls(CallReader):
    """[name(key=value, ...), ...], as Python writes values, or as JSON does. Handed out one by one."""

    HEAD = re.compile(r"[\s,\[]*([\w.-]+)\(")

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._arguments: _Arguments | None = None
        self._scanned = 0
        self._broken = False

    def _read(self, ended: bool) -> Iterator[CallPiece]:
        while not self._broken:
            if self._arguments is None:
                if (found := self.HEAD.match(self._text)) is None:
                    return
                self._skip(found.end())
                self._name, self._arguments = found[1], _Arguments()
                self._nesting, self._scanned = _Nesting("'\"", 1), 0
            if (end := self._argument_end()) is None:
                return
            written, stop = self._skip(end), self._skip(1)
            last, self._scanned = stop == ")", 0
            try:
                given = _argument(written, stop)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._broken = True
                return
            if self._name and (given or last):
                yield CallPiece(name=self._name)
                self._name = ""
            if given:
                yield self._arguments.next(*given)
            if last:
                yield self._arguments.end()
                self._arguments = None

    def _argument_end(self) -> int | None:
        """Where its comma stands, or the parenthesis that closes the call."""
        for place in range(self._scanned, len(self._text)):
            depth = self._nesting.take(self._text[place])
            if depth == 0 or (depth == 1 and self._text[place] == ","):
                return place
        self._scanned = len(self._text)
        return None


class _Nesting:
    """How deep in brackets a text is, character by character."""

    def __init__(self, quotes: str, depth: int = 0) -> None:
        self._quotes, self._depth = quotes, depth
        self._quote = ""  # the one that a text was begun with, inside it
        self._escaped = False

    def take(self, char: str) -> int | None:
        """The depth after this character; None inside a text."""
        if self._escaped:
            self._escaped = False
        elif self._quote:
            self._escaped = char == "\\"
            self._quote = "" if char == self._quote else self._quote
        elif char in self._quotes:
            self._quote = char
        else:
            self._depth += (char in "([{") - (char in ")]}")
            return self._depth
        return None


class _Arguments:
    """An object whose members come one by one."""

    def __init__(self) -> None:
        self._before = "{"

    def next(self, name: str, value: Any) -> CallPiece:
        before, self._before = self._before, ", "
        return CallPiece(f"{before}{_dumped(name)}: {_dumped(value)}")

    def end(self) -> CallPiece:
        return CallPiece("{}" if self._before == "{" else "}")


def _dumped(value: Any) -> str:
    return _whole_characters(json.dumps(value, ensure_ascii=False))


def _whole_characters(text: str) -> str:
    """Halves of characters that were escaped are joined, and those that are alone replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _told(told: Any) -> CallPiece | None:
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    given = told.get("arguments", told.get("parameters", {}))
    if isinstance(given, str):  # some write the object as text
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    return CallPiece(_dumped(given), _whole_characters(told["name"])) if isinstance(given, dict) else None


def is_text(schema: Schema) -> bool:
    return schema.get("type") == "string"


def _value(text: str, schema: Schema) -> Any:
    if is_text(schema):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _argument(written: str, stop: str) -> tuple[str, Any] | None:
    """None: there is nothing between parentheses, or behind the last comma."""
    if stop == ")" and not written.strip():
        return None
    call = ast.parse(f"f({written.strip()})", mode="eval").body
    match call:
        case ast.Call(args=[], keywords=[ast.keyword(arg=str() as name, value=value)]) if stop in ",)":
            return name, _literal_value(value)
    raise ValueError("not an argument with a name")


def _literal_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as value):
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
