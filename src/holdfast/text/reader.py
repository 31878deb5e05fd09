"""What an answer is made of: thoughts, what is said, and calls of tools. In whatever pieces it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .calls import CallPiece, CallReader, Tool
from .stops import StopStrings
from .tools import ToolFormat

THINK, THOUGHT = "<think>", "</think>"
Reading = Callable[[list["Part"], bool], Any]


@dataclass(frozen=True)
class Part:
    """One of three."""

    reasoning: str = ""
    content: str = ""
    call: CallPiece | None = None


class AnswerReader:
    """Nothing that is handed out is taken back: what may be the beginning of a mark is held until that is known.
    Calls are handed out in pieces, from where it is certain that they are some.

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
        self._text = ""  # what came and was not read
        self._calls: CallReader | None = None  # of the block that is being read
        self._after_mark = thinking  # then white space is not part of what is said
        self._answer = self._bare if calls is not None and not calls.opening else self._said
        self._read: Reading = self._thoughts if thinking else self._first if thinks else self._answer
        self._begun = 0

    @property
    def num_calls(self) -> int:
        """That have begun, of those that are wanted."""
        return self._begun if self._most is None else min(self._begun, self._most)

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
        if self._calls is None:
            self._calls = self._format.reader(self._tools)
        closing = self._format.closing
        block, closed, self._text = self._text.partition(closing) if closing else (self._text, "", "")
        if closing and not closed and not final:
            held = StopStrings([closing]).unfinished(block)
            block, self._text = block[: len(block) - held], block[len(block) - held :]
        ended = bool(closed) or final
        for piece in self._calls.take(block, ended=ended):
            self._begun += piece.name is not None
            if self._most is None or self._begun <= self._most:
                parts.append(Part(call=piece))
        if not ended:
            return None
        if not self._calls.begun:
            parts.append(Part(content=self._format.opening + self._calls.unread + closed))
        self._calls = None
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
