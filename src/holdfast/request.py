"""What a user asks for and what comes back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .corruption import StateCorruption
from .params import SamplingParams as SamplingParams
from .params import Structured as Structured


class Rejected(ValueError):
    """A request that can never run, with the reason. No other request is affected."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(f"request {request_id}: {reason}")
        self.request_id = request_id
        self.reason = reason


class FinishReason(enum.StrEnum):
    STOP = "stop"  # an end-of-text token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the model's context is full
    CANCELLED = "cancelled"
    ERROR = "error"  # its state is not to be trusted (see Request.error), or its form could not be followed


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most likely tokens, most likely first."""

    def best(self, count: int) -> TokenLogprob:
        return TokenLogprob(self.token_id, self.logprob, self.top[:count])


@dataclass
class Acceptance:
    """What came of the drafts: of a request's, or of all requests'."""

    drafts: int = 0
    by_accepted: dict[int, int] = field(default_factory=dict)
    """Steps of a request that had drafts to verify, by how many of them were accepted."""

    def count(self, drafts: int, accepted: int) -> None:
        """One window more."""
        self.drafts += drafts
        found = self.by_accepted
        found[accepted] = found.get(accepted, 0) + 1

    def add(self, other: Acceptance) -> None:
        self.drafts += other.drafts
        for accepted, windows in other.by_accepted.items():
            self.by_accepted[accepted] = self.by_accepted.get(accepted, 0) + windows

    @property
    def windows(self) -> int:
        return sum(self.by_accepted.values())

    @property
    def accepted(self) -> int:
        return sum(accepted * windows for accepted, windows in self.by_accepted.items())

    @property
    def accepted_at(self) -> list[int]:
        """Of the first drafts of all windows, of the second ones, and so on."""
        found, most = self.by_accepted.items(), max(self.by_accepted, default=0)
        return [sum(windows for accepted, windows in found if accepted > at) for at in range(most)]

    @property
    def accept_length(self) -> float:
        """Tokens that a window gave on average, the bonus included."""
        return 1 + self.accepted / self.windows if self.windows else 1.0


@dataclass
class SpeculationStats(Acceptance):
    """Of all requests, and how many drafts they are given."""

    depth: int = 0
    """For each row, as last decided."""
    why: str = ""
    steps: dict[int, dict[str, int]] = field(default_factory=dict)
    """Steps that drafts were made in, by how many for each row, and for what reason: fixed, best, explore, probe,
    warm-up, ema."""


@dataclass
class ConstraintStats:
    """What it took to say which tokens may be chosen, where answers must have a form."""

    steps: int = 0
    masks: int = 0
    seconds: float = 0.0

    def count(self, *, masks: int, seconds: float) -> None:
        """One step more."""
        self.steps += 1
        self.masks += masks
        self.seconds += seconds


@dataclass
class Metrics:
    """Seconds on the engine's clock."""

    arrived: float = 0.0
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0
    cached_tokens: int = 0
    """Of the prompt, resumed instead of computed."""
    cache_reason: str = ""
    """Why so many, and why not more."""
    speculation: Acceptance = field(default_factory=Acceptance)


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
    """Tokens that steps in flight will choose, at most: they exist, on the device."""
    uncertain: int = 0
    """How many of those are drafts, which may be rejected."""
    planned: int = 0
    """Tokens that launched steps have absorbed or will absorb, at most. A reservation; it addresses nothing."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of the prompt's second token and those after it, as far as they are collected."""
    chain: list[bytes] = field(default_factory=list, repr=False)
    """Hashes of its whole pages, each of all tokens up to there; the cache makes them, once."""
    finish_reason: FinishReason | None = None
    error: StateCorruption | None = None
    """What the sanitizer found, if that is why it ended."""
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        if not self.tokens:
            self.tokens = list(self.prompt)

    @property
    def known(self) -> int:
        """At most, and `uncertain` less at least."""
        return len(self.tokens) + self.pending

    @property
    def todo(self) -> int:
        """Exact: a rejected draft is neither known nor absorbed."""
        return self.known - self.planned

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def owes_prompt_logprobs(self) -> bool:
        """Tokens of the prompt must still pass through the model, even if their state is known."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt) - 1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end the answer."""
        eos = () if self.params.ignore_eos else sorted(self.eos_token_ids)
        return (*self.params.stop_token_ids, *eos)

    @property
    def order(self) -> tuple[int, int]:
        return (self.priority, self.arrival)


@dataclass(frozen=True)
class Completion:
    """One answer. Its text ends before the stop string; its tokens include the one that completed it."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    """The stop string or the id of stop_token_ids that ended it; None for an end-of-text token."""
    logprobs: tuple[TokenLogprob, ...] | None
    metrics: Metrics


@dataclass(frozen=True)
class RequestOutput:
    """All answers to a prompt, `params.n` of them. The fields of the first are to be had directly as well."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """One for each token of the prompt; nothing leads to the first, so there it is None."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.outputs[0].stop_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return self.outputs[0].logprobs

    @property
    def metrics(self) -> Metrics:
        return self.outputs[0].metrics

    @property
    def cached_tokens(self) -> int:
        return self.outputs[0].metrics.cached_tokens

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)
