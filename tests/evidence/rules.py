"""When an engine's answer counts as equal to the oracle's, and when a set of answers proves anything.

Tie rule: a token other than the oracle's is wrong, unless the oracle itself had it within `margin` of its choice.
After a tie the two continue from different tokens, so the request is compared no further. Ties are counted, and
a test with a tie in every hundred positions proves nothing. Nor does a request whose tokens hardly vary: an
engine that lost its state would repeat itself just as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .oracle import OracleRun

MOST_TIES = 0.01
"""Ties stay below this share of the positions compared."""
LEAST_DISTINCT = 16
"""Distinct tokens among 64 of the oracle's; a quarter of fewer."""


@dataclass(frozen=True)
class Verdict:
    request: str
    positions: int
    """Positions compared, a tie included."""
    tie: bool
    worst: float
    """The largest difference of a log-probability."""
    tokens: int
    distinct: int
    """Tokens, and distinct ones, in the oracle's answer."""
    failure: str | None = None


def compare(
    run: OracleRun,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    *,
    atol: float = 1e-4,
    margin: float = 1e-4,
    request: str = "",
) -> Verdict:
    """Hold an engine's tokens, and the log-probability it gives each, against the oracle's."""
    request = request or _describe(run.prompt)
    worst, compared, tie = 0.0, 0, False
    failure = _check_lengths(run, tokens, logprobs)
    while failure is None and not tie and compared < len(run.tokens):
        found = tokens[compared]
        failure = _check_position(run, compared, found, logprobs[compared], atol, margin)
        if failure is None:
            worst = max(worst, abs(logprobs[compared] - float(run.logprobs[compared, found])))
            tie = found != run.tokens[compared]
        compared += 1
    message = None if failure is None else f"{request}: {failure}"
    return Verdict(request, compared, tie, worst, len(run.tokens), len(set(run.tokens)), message)


def assert_evidence(verdicts: Iterable[Verdict]) -> None:
    """Every answer is right, few were ties, and the oracle's answers vary enough to mean something."""
    verdicts = list(verdicts)
    assert verdicts, "no answer was compared"
    failures = [v.failure for v in verdicts if v.failure is not None]
    assert not failures, f"{len(failures)} of {len(verdicts)} answers are wrong:\n" + "\n".join(failures[:10])
    for v in verdicts:
        least = min(LEAST_DISTINCT, v.tokens // 4)
        assert v.distinct >= least, (
            f"{v.request}: the oracle's {v.tokens} tokens have {v.distinct} distinct ones, evidence needs {least}"
        )
    ties, positions = sum(v.tie for v in verdicts), sum(v.positions for v in verdicts)
    assert ties < MOST_TIES * positions, (
        f"{ties} ties in {positions} positions; they must stay below {MOST_TIES:.0%}"
    )


def _check_lengths(run: OracleRun, tokens: Sequence[int], logprobs: Sequence[float]) -> str | None:
    if len(tokens) == len(logprobs) == len(run.tokens):
        return None
    return f"{len(tokens)} tokens and {len(logprobs)} log-probabilities, expected {len(run.tokens)}"


def _check_position(
    run: OracleRun, position: int, found: int, logprob: float, atol: float, margin: float
) -> str | None:
    expected, row = run.tokens[position], run.logprobs[position]
    if not 0 <= found < len(row):
        return (
            f"position {position}: expected token {expected}, found {found}, which is not in the vocabulary"
        )
    behind = float(row[expected] - row[found])
    difference = logprob - float(row[found])
    fine = math.isfinite(logprob) and abs(difference) <= atol
    if fine and (found == expected or behind < margin):
        return None
    return (
        f"position {position}: expected token {expected}, found {found}, which the oracle has {behind:.2e} behind; "
        f"its top-2 margin there is {run.margins[position]:.2e}; "
        f"log-probability {logprob:.6f}, the oracle's {float(row[found]):.6f}, difference {difference:+.2e}"
    )


def _describe(prompt: tuple[int, ...]) -> str:
    start = ", ".join(map(str, prompt[:4]))
    return f"prompt of {len(prompt)} tokens ({start}{', ...' if len(prompt) > 4 else ''})"
