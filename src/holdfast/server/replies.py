"""Answers as OpenAI's clients read them: whole, or piece by piece."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..answer import Answer
from ..request import FinishReason, Request, TokenLogprob
from ..text import AnswerReader, CallPiece, Part, Tokenizer


class TokenNames:
    """Tokens as text, for log-probabilities. One that is no whole text has its number for a name."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.name = lru_cache(maxsize=1 << 16)(self._name)

    def _name(self, token_id: int) -> str:
        text = self._tokenizer.decode([token_id], skip_special_tokens=False) if self._tokenizer else ""
        return text if text and "\ufffd" not in text else f"token_id:{token_id}"


@dataclass(frozen=True)
class Echo:
    """A prompt that is to be given back before its answers."""

    text: str
    request: Request
    """The one of them that has the prompt's log-probabilities, if there are any."""

    @property
    def known(self) -> bool:
        return not self.request.owes_prompt_logprobs


@dataclass
class Choice:
    """One answer as one client has seen it."""

    index: int
    answer: Answer
    most: int
    """Tokens that were asked for. 0 if only the prompt is to be scored: the engine gives one at least."""
    echo: Echo | None = None
    reader: AnswerReader | None = None
    """Of an answer in which not all is text."""
    text_shown: int = 0
    tokens_shown: int = 0
    echoed: int = 0
    """Characters that came before the answer's own."""
    ended: bool = False

    def take(self) -> Piece | None:
        """What came since the last time, if anything did."""
        answer = self.answer
        length = min(answer.length, self.most)
        nothing = length == self.tokens_shown and not answer.finished
        if self.ended or nothing or (self.echo and not self.echo.known):
            return None
        text = answer.text if self.most else ""
        logprobs = answer.request.logprobs[self.tokens_shown : length]
        start = len(answer.request.prompt)
        tokens = answer.request.tokens[start + self.tokens_shown : start + length]
        piece = Piece(self.index, text[self.text_shown :], tokens, [*logprobs], self.echoed + self.text_shown)
        self.text_shown, self.tokens_shown, self.ended = len(text), length, answer.finished
        if self.reader:
            piece.first_call = self.reader.num_calls
            piece.parts = self.reader.take(piece.text, final=answer.finished)
        if answer.finished:
            piece.finish_reason = str(answer.finish_reason if self.most else FinishReason.LENGTH)
            piece.stop_reason = answer.stop_reason if self.most else None
            if self.reader and self.reader.num_calls and piece.finish_reason == FinishReason.STOP:
                piece.finish_reason = "tool_calls"
        if self.echo:
            _put_before(self.echo, piece)
            self.echoed, self.echo = len(self.echo.text), None
        return piece


@dataclass
class Piece:
    index: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob | None]
    offset: int
    """Of the text, in the whole answer."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    parts: list[Part] | None = None
    """What the text is made of, if it is read."""
    first_call: int = 0
    """Calls that came before this piece."""

    @property
    def shows(self) -> bool:
        return bool(self.finish_reason or (self.text if self.parts is None else self.parts))

    def message(self) -> dict[str, Any]:
        """What there is of content, thoughts and calls."""
        parts = [Part(content=self.text)] if self.parts is None else self.parts
        told: dict[str, Any] = {
            "content": "".join(part.content for part in parts),
            "reasoning_content": "".join(part.reasoning for part in parts),
            "tool_calls": _calls([part.call for part in parts if part.call], self.first_call),
        }
        return {name: value for name, value in told.items() if value}


def _calls(pieces: Sequence[CallPiece], first: int) -> list[dict[str, Any]]:
    """Joined, each call's own. The first may be of a call that has begun before: then only its arguments are told."""
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.name is not None:
            call_id = piece.id or f"call_{secrets.token_hex(12)}"
            function = {"name": piece.name, "arguments": piece.arguments}
            calls.append({"index": first, "id": call_id, "type": "function", "function": function})
            first += 1
        elif calls:
            calls[-1]["function"]["arguments"] += piece.arguments
        else:
            calls.append({"index": first - 1, "function": {"arguments": piece.arguments}})
    return calls


def _put_before(echo: Echo, piece: Piece) -> None:
    piece.text = echo.text + piece.text
    piece.tokens = [*echo.request.prompt, *piece.tokens]
    piece.logprobs = [None, *echo.request.prompt_logprobs, *piece.logprobs]


def usage(answers: Sequence[Sequence[Answer]], choices: Sequence[Choice]) -> dict[str, Any]:
    prompts = [several[0].request for several in answers]
    prompt = sum(len(request.prompt) for request in prompts)
    answer = sum(min(choice.answer.length, choice.most) for choice in choices)
    cached = sum(request.metrics.cached_tokens for request in prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@dataclass
class Reply:
    """What is the same in every part of a response. `names` is None if no log-probabilities were asked for."""

    id: str
    model: str
    names: TokenNames | None
    with_token_ids: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    KIND = CHUNK_KIND = ""

    def whole(self, pieces: Sequence[Piece], used: dict[str, Any]) -> dict[str, Any]:
        choices = [self._choice(piece) for piece in pieces]
        return self._head(self.KIND) | {"choices": choices, "usage": used}

    def chunk(self, pieces: Sequence[Piece], used: dict[str, Any] | None = None) -> dict[str, Any]:
        told = self._head(self.CHUNK_KIND) | {"choices": [self._delta(piece) for piece in pieces]}
        return told if used is None else told | {"usage": used}

    def opening(self, count: int) -> dict[str, Any] | None:
        """A chunk before all others, where the protocol has one."""
        return None

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _ended(self, piece: Piece) -> dict[str, Any]:
        told: dict[str, Any] = {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}
        return told | {"token_ids": piece.tokens} if self.with_token_ids else told

    def _choice(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError


class ChatReply(Reply):
    KIND, CHUNK_KIND = "chat.completion", "chat.completion.chunk"

    def opening(self, count: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for i in range(count)
        ]
        return self._head(self.CHUNK_KIND) | {"choices": choices}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        said = piece.message()
        for call in said.get("tool_calls", ()):
            del call["index"]  # only pieces of an answer need it
        nothing = None if "tool_calls" in said else ""
        message = {"role": "assistant", "content": nothing, "refusal": None} | said
        told = {"index": piece.index, "message": message, "logprobs": self._logprobs(piece)}
        return told | self._ended(piece)

    def _delta(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.index,
            "delta": piece.message(),
            "logprobs": self._logprobs(piece),
        } | self._ended(piece)

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self.names is None:
            return None
        scored = [logprob for logprob in piece.logprobs if logprob is not None]
        content = [
            self._scored(logprob.token_id, logprob.logprob)
            | {"top_logprobs": [self._scored(token, value) for token, value in logprob.top]}
            for logprob in scored
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token_id: int, logprob: float) -> dict[str, Any]:
        assert self.names is not None
        name = self.names.name(token_id)
        known = not name.startswith("token_id:")
        return {"token": name, "logprob": _finite(logprob), "bytes": list(name.encode()) if known else None}


class CompletionReply(Reply):
    KIND = CHUNK_KIND = "text_completion"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        told = {"index": piece.index, "text": piece.text, "logprobs": self._logprobs(piece)}
        return told | self._ended(piece)

    _delta = _choice

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self.names is None:
            return None
        names = [self.names.name(token) for token in piece.tokens]
        offsets, offset = [], piece.offset
        for name in names:
            offsets.append(offset)
            offset += len(name) if not name.startswith("token_id:") else 0
        top = [
            None if each is None else {self.names.name(token): _finite(value) for token, value in each.top}
            for each in piece.logprobs
        ]
        return {
            "tokens": names,
            "token_logprobs": [None if each is None else _finite(each.logprob) for each in piece.logprobs],
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _finite(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, -9999.0)
