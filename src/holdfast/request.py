"""What a user asks for and what comes back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Rejected(ValueError):
    """A request that can never run, with the reason. No other request is affected."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(f"request {request_id}: {reason}")
        self.request_id = request_id
        self.reason = reason


class FinishReason(enum.StrEnum):
    STOP = "stop"  # an end-of-text token
    LENGTH = "length"  # max_tokens, or the model's context is full
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. temperature 0 takes the most likely one."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """None: no log-probabilities. n: the chosen token's, and those of the n most likely."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")
        if not self.temperature >= 0.0:
            raise ValueError(f"temperature={self.temperature} must be 0 (greedy) or more")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} must be 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p={self.min_p} must be between 0 and 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise ValueError(f"logprobs={self.logprobs} must be between 0 and 20")


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most likely tokens, most likely first."""


@dataclass
class Metrics:
    """Seconds on the engine's clock."""

    arrived: float = 0.0
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0
    cached_tokens: int = 0


@dataclass
class Request:
    """A request as the host column follows it. There are no phases: only tokens known and tokens planned."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    priority: int = 0  # lower runs first
    arrival: int = 0  # order of submission
    tokens: list[int] = field(default_factory=list)
    """Prompt and collected output."""
    pending: int = 0
    """Tokens that steps in flight will sample: they exist, on the device."""
    planned: int = 0
    """Tokens that launched steps have absorbed or will absorb. A reservation; it addresses nothing."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt)

    @property
    def known(self) -> int:
        return len(self.tokens) + self.pending

    @property
    def todo(self) -> int:
        return self.known - self.planned

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def order(self) -> tuple[int, int]:
        return (self.priority, self.arrival)


@dataclass(frozen=True)
class RequestOutput:
    request_id: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None
    metrics: Metrics

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
