"""Asks a set of questions twice: plainly, and with everything that the engine can do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..llm import LLM
from ..request import RequestOutput, SamplingParams
from ..verify.rules import Comparison, Scored, compare
from .questions import Message, QuestionSet

PLAIN: Mapping[str, Any] = {"overlap": False, "enable_prefix_caching": False, "max_num_seqs": 1}
"""One question at a time, its prompt whole, nothing overlapped, reused or guessed."""
EVERYTHING: Mapping[str, Any] = {
    "overlap": True,
    "enable_prefix_caching": True,
    "page_size": 16,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
}
"""In company, in chunks, resumed where others were, with drafts."""
DRAFTS = 3
GROUP = 24
"""Questions, more than run at once."""
BEST = 5
"""Alternatives that are kept of each token, so that ties can be told from faults."""


@dataclass(frozen=True)
class Outcome:
    """What became of a set."""

    name: str
    questions: int
    tokens: int
    """Of the plain answers."""
    ties: int
    """Answers that went another way where two tokens were within the tolerance."""
    worst: float
    differing: list[str]
    """What differs where nothing may."""
    right_plain: int | None
    right: int | None
    """How many were answered right, if that is judged."""
    resumed_tokens: int
    """Of prompts, found from before."""
    accept_length: float | None
    """Tokens of a window; None if nothing was drafted."""
    seconds_plain: float
    seconds: float

    @property
    def equal(self) -> bool:
        return not self.differing


class Evaluation:
    """A model, plain and with everything on.

    together  so many questions are answered at a time by the plain one
    options   of EngineConfig for both: device, dtype
    """

    def __init__(self, directory: Path, *, together: int = 1, **options: Any) -> None:
        self.dtype = EngineConfig(**options).dtype
        self._plain = LLM(directory, **{**PLAIN, "max_num_seqs": together, **options})
        self._full = LLM(directory, **{**EVERYTHING, "speculative_config": drafting(directory), **options})

    def outcomes(self, sets: Sequence[QuestionSet], max_tokens: int | None) -> Iterator[Outcome]:
        for asked in sets:
            yield self.ask(asked, max_tokens or asked.max_tokens)

    def ask(self, asked: QuestionSet, max_tokens: int) -> Outcome:
        params = SamplingParams(max_tokens=max_tokens, logprobs=BEST)
        conversations = [question.messages for question in asked.questions]
        began = time.perf_counter()
        plain = self._plain.chat(conversations, params)
        middle = time.perf_counter()
        resumed, drafted = self._resumed_tokens(), self._full.speculation_stats()
        twice = self._answer_twice(conversations, params)
        ended = time.perf_counter()
        resumed, speculation = self._resumed_tokens() - resumed, self._full.speculation_stats()
        windows = speculation.windows - drafted.windows
        compared = [
            (place, compare_answers(reference, output, self.dtype))
            for outputs in twice
            for place, (reference, output) in enumerate(zip(plain, outputs, strict=True))
        ]
        return Outcome(
            name=asked.name,
            questions=len(plain),
            tokens=sum(len(output.token_ids) for output in plain),
            ties=sum(c.tie for _, c in compared),
            worst=max((c.worst for _, c in compared), default=0.0),
            differing=[f"question {place}: {c.failure}" for place, c in compared if c.failure],
            right_plain=count_right(asked, plain),
            right=count_right(asked, twice[1]),
            resumed_tokens=resumed,
            accept_length=(1 + (speculation.accepted - drafted.accepted) / windows) if windows else None,
            seconds_plain=middle - began,
            seconds=(ended - middle) / 2,
        )

    def _answer_twice(
        self, conversations: list[list[Message]], params: SamplingParams
    ) -> tuple[list[RequestOutput], list[RequestOutput]]:
        """A few at a time, so that the second time every question still finds what the first one left behind."""
        first, second = list[RequestOutput](), list[RequestOutput]()
        for start in range(0, len(conversations), GROUP):
            for outputs in (first, second):
                outputs += self._full.chat(conversations[start : start + GROUP], params)
        return first, second

    def _resumed_tokens(self) -> int:
        return self._full.cache_stats().counters.resumed_tokens


def drafting(directory: Path) -> dict[str, Any]:
    """By the model's own head, if its config says that it has one."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    heads = (config | config.get("text_config", {})).get("mtp_num_hidden_layers")
    return {"method": "mtp" if heads else "ngram", "num_speculative_tokens": DRAFTS}


def compare_answers(reference: RequestOutput, found: RequestOutput, dtype: str) -> Comparison:
    """Answers end where the model ends them: as far as the shorter one goes, then in where they end."""
    wanted, got = _scored(reference), _scored(found)
    shared = min(len(wanted), len(got))
    result = compare(wanted[:shared], got[:shared], dtype=dtype, exact=False)
    if result.failure or result.tie or len(wanted) == len(got):
        return result
    return compare(wanted, got, dtype=dtype, exact=False)


def _scored(output: RequestOutput) -> Scored:
    assert output.logprobs is not None
    return output.logprobs


def count_right(asked: QuestionSet, outputs: Sequence[RequestOutput]) -> int | None:
    if not asked.judged:
        return None
    pairs = zip(asked.questions, outputs, strict=True)
    return sum(question.right(output.text) for question, output in pairs if question.right)
