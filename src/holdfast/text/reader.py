"""What an answer is made of: thoughts, what is said, and calls of tools. In whatever pieces it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .stops import StopStrings
from .tools import Tool, ToolCall, ToolFormat

THINK, THOUGHT = "<think>", "</think>"
Reading = Callable[[list["Part"], bool], Any]


@dataclass(frozen=True)
class Part:
    """One of three."""

    reasoning: str = ""
    content: str = ""
    call: ToolCall | None = None


class AnswerReader:
    """Nothing that is handed out is taken back: what may be the beginning of a mark is held until that is known. A
    call is handed out when it is whole; if it is none, it is handed out as the text that it is.

    thinks    thoughts may stand before the answer, between <think> and </think>
    thinking  the prompt has opened them already
    calls     how calls are written; None: there are no tools
    most      calls that are wanted; further ones are dropped
    """

    def __init__(
        self,
        *,
        thinks: bool = False,
        thinking: bool = False,
        calls: ToolFormat | None = None,
        tools: Sequence[Tool] = (),
        most: int | None = None,
    ) -> None:
        self._format, self._tools, self._most = calls, tools, most
        self._text = ""  # what came and was not handed out
        self._after_mark = thinking  # then white space is not part of what is said
        self._answer = self._bare if calls is not None and not calls.opening else self._said
        self._read: Reading = self._thoughts if thinking else self._first if thinks else self._answer
        self.num_calls = 0

    def take(self, text: str, *, final: bool = False) -> list[Part]:
        """What the next piece of the answer makes certain; with `final`, all that is left."""
        self._text += text
        parts: list[Part] = []
        while (following := self._read(parts, final)) is not None:
            self._read, self._after_mark = following, True
        return parts

    # Each of these reads what it can, and says who reads on, if anybody does yet.

    def _first(self, parts: list[Part], final: bool) -> Reading | None:
        begin = self._text.lstrip()
        if begin.startswith(THINK):
            self._text = begin.removeprefix(THINK)
            return self._thoughts
        if not final and THINK.startswith(begin):
            return None
        self._read = self._answer
        return self._read(parts, final)

    def _thoughts(self, parts: list[Part], final: bool) -> Reading | None:
        text, ended = self._until(THOUGHT, final)
        parts += [Part(reasoning=text)] if text else []
        return self._answer if ended else None

    def _bare(self, parts: list[Part], final: bool) -> Reading | None:
        """Of calls that are the whole answer."""
        assert self._format is not None
        begin = self._text.lstrip()
        if begin.startswith(("{", *self._format.marks)):
            self._text = begin
            return self._called
        if not final and any(mark.startswith(begin) for mark in self._format.marks):
            return None
        self._read = self._said
        return self._read(parts, final)

    def _said(self, parts: list[Part], final: bool) -> Reading | None:
        text, ended = self._until(self._format.opening if self._format else "", final)
        parts += [Part(content=text)] if text else []
        return self._called if ended else None

    def _called(self, parts: list[Part], final: bool) -> Reading | None:
        assert self._format is not None
        opening, closing = self._format.opening, self._format.closing
        block, closed, rest = self._text.partition(closing) if closing else (self._text, "", "")
        if not closed and not final:
            return None
        self._text = rest
        calls = self._format.read(block, self._tools)
        if calls is None:
            parts.append(Part(content=opening + block + closed))
        else:
            room = len(calls) if self._most is None else self._most - self.num_calls
            parts += [Part(call=call) for call in calls[:room]]
            self.num_calls += len(calls[:room])
        return self._said

    def _until(self, mark: str, final: bool) -> tuple[str, bool]:
        """What stands before the mark, and whether it was there. White space beside a mark belongs to it."""
        text, found, rest = self._text.partition(mark) if mark else (self._text, "", "")
        if found:
            text = text.rstrip()
        elif not final:
            kept = len(text) - (StopStrings([mark]).unfinished(text) if mark else 0)
            text, rest = text[: len(text[:kept].rstrip())], text[len(text[:kept].rstrip()) :]
        self._text = rest
        text = text.lstrip() if self._after_mark else text
        self._after_mark = self._after_mark and not text
        return text, bool(found)
