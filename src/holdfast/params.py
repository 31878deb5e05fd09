"""How to choose tokens and when to stop, as a user asks for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .structured import Structured as Structured

MAX_LOGPROBS = 20
MAX_LISTED = 512
"""Tokens that logit_bias may name, and stop_token_ids as well."""
LARGEST = 2**31 - 1
COOLEST, HOTTEST = 1e-3, 1e3
"""Divided by less, logits grow so large that float32 rounds away the noise that a draw is made by."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to end. `ops.sampling.reference` tells in which order all this acts.

    Whatever contradicts itself is refused here, by a ValueError; what does not fit the model, when submitted.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    """Nothing but max_tokens ends the answer before it has this many tokens."""
    temperature: float = 0.0
    """0 takes the most likely token."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """The same seed, prompt and parameters give the same answer, whatever else is running."""
    n: int = 1
    """Answers, each drawn with a seed of its own. With temperature 0 they would all be equal: refused."""
    stop: Sequence[str] = ()
    """One string, or several. The text ends before the first that appears, wherever token boundaries fall."""
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: no log-probabilities. k: the chosen token's, and those of the k most likely. They are the model's
    own: nothing else here changes them."""
    prompt_logprobs: int | None = None
    """The same for every token of the prompt but the first."""
    repetition_penalty: float = 1.0
    """Positive logits of tokens in the prompt or the answer are divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that the answer has."""
    frequency_penalty: float = 0.0
    """Taken from the logit of every token as many times as the answer has it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    structured: Structured | None = None
    """The form that the answer must have: tokens that would leave it are never chosen, whatever else is asked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for check in CHECKS:
            check(self)

    @cached_property
    def draws(self) -> bool:
        return self.temperature > 0.0

    @cached_property
    def truncates(self) -> bool:
        """Some tokens are out of the question, and only sorting finds them."""
        return self.draws and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @cached_property
    def penalises(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @cached_property
    def adjusts(self) -> bool:
        """Logits are changed before anything is chosen, greedily or not."""
        return self.penalises or bool(self.logit_bias) or self.min_tokens > 0


def _check_lengths(params: SamplingParams) -> None:
    _check_count("max_tokens", params.max_tokens, 1)
    _check_count("min_tokens", params.min_tokens, 0)
    if params.min_tokens > params.max_tokens:
        raise ValueError(
            f"min_tokens={params.min_tokens} is more than max_tokens={params.max_tokens}; "
            "lower one or raise the other"
        )


def _check_draws(params: SamplingParams) -> None:
    _check_number("temperature", params.temperature, f"0 (greedy) or more, at most {HOTTEST:g}", 0.0, HOTTEST)
    if 0.0 < params.temperature < COOLEST:
        raise ValueError(f"temperature={params.temperature} must be 0 (greedy) or at least {COOLEST}")
    _check_count("top_k", params.top_k, 0, "0 (off) or more")
    _check_number("top_p", params.top_p, "above 0 and at most 1", math.ulp(0.0), 1.0)
    _check_number("min_p", params.min_p, "between 0 and 1", 0.0, 1.0)
    if params.seed is not None and not (_is_int(params.seed) and -(2**63) <= params.seed < 2**63):
        raise ValueError(f"seed={params.seed!r} must be a whole number of 64 bits, or None for a random one")
    _check_count("n", params.n, 1)
    if params.n > 1 and not params.draws:
        raise ValueError(
            f"n={params.n} with temperature=0 would give the same answer {params.n} times; "
            "raise temperature or leave n at 1"
        )


def _check_penalties(params: SamplingParams) -> None:
    repetition = params.repetition_penalty
    _check_number("repetition_penalty", repetition, "between 0.01 and 100; 1 is off", 0.01, 100.0)
    for name in ("presence_penalty", "frequency_penalty"):
        _check_number(name, getattr(params, name), "between -2 and 2; 0 is off", -2.0, 2.0)
    _check_listed("logit_bias", len(params.logit_bias))
    for token, bias in params.logit_bias.items():
        if not _is_int(token):
            raise ValueError(f"logit_bias names {token!r}; its keys are token ids, whole numbers")
        _check_number(f"logit_bias[{token}]", bias, "between -100 (never) and 100 (always)", -100.0, 100.0)


def _check_stops(params: SamplingParams) -> None:
    for text in params.stop:
        if not isinstance(text, str) or not text:
            raise ValueError(f"stop has {text!r}; every stop must be a string of at least one character")
    _check_listed("stop_token_ids", len(params.stop_token_ids))
    for token in params.stop_token_ids:
        if not _is_int(token):
            raise ValueError(f"stop_token_ids has {token!r}; use stop for strings")


def _check_logprobs(params: SamplingParams) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and not (_is_int(value) and 0 <= value <= MAX_LOGPROBS):
            raise ValueError(f"{name}={value!r} must be between 0 and {MAX_LOGPROBS}, or None for none")


def _check_structured(params: SamplingParams) -> None:
    """A form says itself when an answer may end, and then it must be able to."""
    if params.structured is None:
        return
    if not isinstance(params.structured, Structured):
        raise ValueError(f"structured={params.structured!r} must be a Structured, or None for any answer")
    for name, off in (("ignore_eos", False), ("min_tokens", 0)):
        if getattr(params, name) != off:
            raise ValueError(
                f"{name} is not for structured answers: the form says when they end; leave it at {off}"
            )


CHECKS = (
    *(_check_lengths, _check_draws, _check_penalties),
    *(_check_stops, _check_logprobs, _check_structured),
)


def _check_count(name: str, value: object, least: int, wanted: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be a whole number")
    if value > LARGEST:
        raise ValueError(f"{name}={value} must be at most {LARGEST}")
    if value < least:
        raise ValueError(f"{name}={value} must be {wanted or f'at least {least}'}")


def _check_number(name: str, value: object, wanted: str, least: float, most: float) -> None:
    if not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:  # NaN is not <= anything
        raise ValueError(f"{name}={value!r} must be a finite number")
    if not least <= value <= most:
        raise ValueError(f"{name}={value} must be {wanted}")


def _check_listed(name: str, count: int) -> None:
    if count > MAX_LISTED:
        raise ValueError(f"{name} names {count:,} tokens; it may name {MAX_LISTED:,}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
