"""What the server and its engine say to each other, in frames on a socket that only these two have."""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from ..cache import CacheStats
from ..config import EngineConfig, Limits
from ..request import (
    ConstraintStats,
    FinishReason,
    Metrics,
    Request,
    SamplingParams,
    SpeculationStats,
    TokenLogprob,
)
from ..scheduler.scheduler import Counters
from ..scheduler.watch import LiveRequest


class Message(msgspec.Struct, tag=True, array_like=True):
    pass


# --- down, to the engine ---


class Start(Message):
    """Always the first."""

    directory: str
    config: EngineConfig
    log: dict[str, Any]


class Asked(msgspec.Struct, array_like=True):
    """A request, as far as it is known before it runs."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[int]
    priority: int

    @classmethod
    def of(cls, request: Request) -> Asked:
        r = request
        return cls(r.id, r.prompt, r.params, r.seed, r.eos_token_ids, r.priority)

    def request(self) -> Request:
        return Request(self.id, self.prompt, self.params, self.seed, self.eos_token_ids, self.priority)


class Submit(Message):
    requests: list[Asked]


class Cancel(Message):
    request_ids: list[str]


class Finish(Message):
    """A stop string ended it, after so many tokens of its answer: only the server reads text."""

    request_id: str
    kept: int


class Ask(Message):
    number: int
    what: Literal["stats", "requests", "reset"]


# --- up, to the server ---


class Loaded(Message):
    capacity: dict[str, Any]
    limits: Limits


class CannotStart(Message):
    reason: str


class Refused(Message):
    request_id: str
    reason: str


class Growth(msgspec.Struct, array_like=True):
    """What a request got since it was last told."""

    request_id: str
    tokens: list[int]
    finish_reason: FinishReason | None = None
    metrics: Metrics | None = None
    """With its first token and at its end."""
    logprobs: list[TokenLogprob] = []
    prompt_logprobs: list[TokenLogprob] = []
    error: str | None = None


class Stepped(Message):
    growth: list[Growth]


class EngineStats(msgspec.Struct):
    running: int
    waiting: int
    counters: Counters
    cache: CacheStats
    findings: int
    speculation: SpeculationStats
    constraints: ConstraintStats = msgspec.field(default_factory=ConstraintStats)
    live: list[LiveRequest] = []
    """If they were asked for."""


class Told(Message):
    number: int
    stats: EngineStats


Down = Start | Submit | Cancel | Finish | Ask
Up = Loaded | CannotStart | Refused | Stepped | Told

HEADER = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


def frame(message: Message) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body
