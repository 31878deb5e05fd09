"""Calls whose arguments the model does not write as JSON: they are made into it, one after another."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .calls import CallPiece, CallReader, JsonCalls, Nesting, Schema, Tool, dumped
from .stops import StopStrings


class ParameterCalls(CallReader):
    """<function=name> and <parameter=name>, a value on lines of its own. It is a text if the tool says so, and handed
    out as it comes; otherwise it is JSON, and handed out when it is whole. Some models write JsonCalls here too."""

    FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
    PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(?:\n|(?=[^\n]))")
    CLOSING = "</parameter>"
    MARKS = StopStrings([f"\n{CLOSING}", CLOSING])
    END = re.compile(r"\s*</function>")

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__()
        self._tools = tools
        self._arguments: _Arguments | None = None
        self._schemas: Mapping[str, Schema] = {}
        self._open: str | None = None  # the parameter whose value is being read
        self._json: JsonCalls | None = None

    def _read(self, ended: bool) -> Iterator[CallPiece]:
        if not self.begun and not self._json and self._text.lstrip().startswith("{"):
            self._json = JsonCalls()
        if self._json:
            yield from self._json.take(self._skip(len(self._text)), ended=ended)
            return
        while True:
            if self._open is not None:
                yield from self._value(self._open)
                if self._open is not None:
                    return
            elif self._arguments is None:
                if (found := self._skip_match(self.FUNCTION)) is None:
                    return
                self._begin(found[1].strip())
                yield CallPiece(name=found[1].strip())
            elif found := self._skip_match(self.PARAMETER):
                self._open = found[1]
                if self._is_text(found[1]):
                    yield self._arguments.name(found[1], '"')
            elif self._skip_match(self.END) or (ended and not self._text.strip()):
                yield self._arguments.end()
                self._arguments = None
            else:
                return

    def _begin(self, name: str) -> None:
        self._arguments = _Arguments()
        self._schemas = next((tool.properties for tool in self._tools if tool.name == name), {})

    def _is_text(self, name: str) -> bool:
        return is_text(self._schemas.get(name, {}))

    def _value(self, name: str) -> Iterator[CallPiece]:
        """What there is of it. A line's end belongs to the mark behind it."""
        assert self._arguments is not None
        value, closed, _ = self._text.partition(self.CLOSING)
        if closed:
            self._skip(len(value) + len(closed))
            value = value.removesuffix("\n")
            self._open = None
        elif self._is_text(name):
            value = self._skip(len(value) - self.MARKS.unfinished(value))
        if self._is_text(name):
            written = dumped(value)[1:-1] + ('"' if closed else "")
            yield from [CallPiece(written)] if written else []
        elif closed:
            yield self._arguments.name(name, dumped(_json_or_text(value)))


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
                if (found := self._skip_match(self.HEAD)) is None:
                    return
                self._name, self._arguments = found[1], _Arguments()
                self._nesting, self._scanned = Nesting("'\"", 1), 0
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
                yield self._arguments.name(given[0], dumped(given[1]))
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


class _Arguments:
    """An object whose members come one by one."""

    def __init__(self) -> None:
        self._before = "{"

    def name(self, name: str, value: str) -> CallPiece:
        """value: as JSON, or its beginning"""
        before, self._before = self._before, ", "
        return CallPiece(f"{before}{dumped(name)}: {value}")

    def end(self) -> CallPiece:
        return CallPiece("{}" if self._before == "{" else "}")


def is_text(schema: Schema) -> bool:
    return schema.get("type") == "string"


def _json_or_text(text: str) -> Any:
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
