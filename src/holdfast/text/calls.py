"""Calls of tools, read while they are written. What was handed out is never taken back.

A reader is given what stands between a format's opening and closing, in whatever pieces it comes. Arguments leave it
as JSON: as the model wrote them, or one by one where the model writes something else.
"""

from __future__ import annotations

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
        """Less those that may not be; whatever may be anything has the schema {}."""
        given = self.parameters.get("properties")
        named = given.items() if isinstance(given, Mapping) else ()
        return {name: part if isinstance(part, Mapping) else {} for name, part in named if part is not False}

    @property
    def required(self) -> Sequence[str]:
        given = self.parameters.get("required")
        return given if isinstance(given, list) else ()


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

    def _skip_match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if found := pattern.match(self._text):
            self._skip(found.end())
        return found


class ArgumentsAsText(CallReader):
    """Calls whose arguments are JSON: they are handed out as they come, from the head of a call to the brace that
    closes them.

    head   what stands before arguments, up to their first brace; its group is the name
    outer  braces that the head has opened itself
    """

    def __init__(self, head: re.Pattern[str], outer: int) -> None:
        super().__init__()
        self._head, self._outer = head, outer
        self._nesting = Nesting('"')
        self._until: int | None = None  # the depth at which arguments end, or a call; None between calls

    def _read(self, ended: bool) -> Iterator[CallPiece]:
        while True:
            while self._until is not None:
                part, ended_here = self._part(self._until)
                if part and self._until == self._outer:
                    yield CallPiece(part)
                if not ended_here:
                    return
                self._until = 0 if self._until else None
            if (found := self._skip_match(self._head)) is None:
                break
            self._nesting, self._until = Nesting('"', self._outer), self._outer
            yield self._begin(found[1].strip())
        if ended:
            yield from self._whole(self._text)

    def _part(self, depth: int) -> tuple[str, bool]:
        """The text up to where it is no deeper than this, and whether that is there."""
        for place, char in enumerate(self._text):
            if self._nesting.take(char) == depth:
                return self._skip(place + 1), True
        return self._skip(len(self._text)), False

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


class Nesting:
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


def dumped(value: Any) -> str:
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
    return CallPiece(dumped(given), _whole_characters(told["name"])) if isinstance(given, dict) else None
