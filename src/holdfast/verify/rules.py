"""When an answer counts as the reference's.

float32     the same tokens, unless the reference had both within 1e-4; log-probabilities within 1e-4
bfloat16,   the divergence of the two distributions from which each token was chosen stays below a bound, as far
float16     as both answers agree and for the first token in which they do not
exact mode  the same bits
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..request import TokenLogprob

TOLERANCE = 1e-4
KL_BOUND = {"bfloat16": 5e-2, "float16": 5e-3}
"""Of one position. Numbers of eight bits in models made to be sensitive diverge by 0.01 to 0.04."""

Scored = Sequence[TokenLogprob]
"""An answer's tokens, each with its log-probability and the best alternatives'."""


@dataclass(frozen=True)
class Comparison:
    """Of one answer with the reference's."""

    positions: int = 0
    tie: bool = False
    worst: float = 0.0
    """The largest difference of a log-probability, or the largest divergence."""
    failure: str | None = None


def compare(reference: Scored, found: Scored, *, dtype: str, exact: bool) -> Comparison:
    if len(found) != len(reference):
        return Comparison(failure=f"{len(found)} tokens where the reference has {len(reference)}")
    if exact:
        return _bitwise(reference, found)
    return _within_tolerance(reference, found) if dtype == "float32" else _divergence(reference, found, dtype)


def _bitwise(reference: Scored, found: Scored) -> Comparison:
    for place, (wanted, got) in enumerate(zip(reference, found, strict=True)):
        if wanted != got:
            return Comparison(place + 1, worst=_apart(wanted, got), failure=_tell(place, wanted, got))
    return Comparison(len(found))


def _within_tolerance(reference: Scored, found: Scored) -> Comparison:
    worst = 0.0
    for place, (wanted, got) in enumerate(zip(reference, found, strict=True)):
        expected = logprob_of(wanted, got.token_id)
        behind = wanted.logprob - expected
        apart = abs(got.logprob - expected)
        if not (behind < TOLERANCE and apart <= TOLERANCE):  # NaN fails as well
            return Comparison(place + 1, worst=max(worst, apart), failure=_tell(place, wanted, got))
        worst = max(worst, apart)
        if got.token_id != wanted.token_id:
            return Comparison(place + 1, tie=True, worst=worst)
    return Comparison(len(found), worst=worst)


def _divergence(reference: Scored, found: Scored, dtype: str) -> Comparison:
    worst = 0.0
    for place, (wanted, got) in enumerate(zip(reference, found, strict=True)):
        kl = divergence(wanted, got)
        worst = max(worst, kl)
        if not kl < KL_BOUND[dtype]:
            failure = f"{_tell(place, wanted, got)}, KL {kl:.1e} where {dtype} may have {KL_BOUND[dtype]:g}"
            return Comparison(place + 1, worst=kl, failure=failure)
        if got.token_id != wanted.token_id:
            return Comparison(place + 1, tie=True, worst=worst)
    return Comparison(len(found), worst=worst)


def divergence(p: TokenLogprob, q: TokenLogprob) -> float:
    """KL(p || q) over the tokens that both list, all others taken together: never more than the whole."""
    of_p, of_q = _listed(p), _listed(q)
    both = of_p.keys() & of_q.keys()
    kl = sum(math.exp(of_p[token]) * (of_p[token] - of_q[token]) for token in both)
    rest_p, rest_q = (1.0 - sum(math.exp(of[token]) for token in both) for of in (of_p, of_q))
    if rest_p > 1e-6 and rest_q > 1e-6:  # less is what rounding leaves
        kl += rest_p * math.log(rest_p / rest_q)
    return max(kl, 0.0) if math.isfinite(kl) else math.inf


def logprob_of(scored: TokenLogprob, token: int) -> float:
    """What the reference gives a token; -inf for one that is not even among its best."""
    return _listed(scored).get(token, -math.inf)


def _listed(scored: TokenLogprob) -> dict[int, float]:
    return {**dict(scored.top), scored.token_id: scored.logprob}


def _apart(wanted: TokenLogprob, got: TokenLogprob) -> float:
    return abs(got.logprob - logprob_of(wanted, got.token_id))


def _tell(place: int, wanted: TokenLogprob, got: TokenLogprob) -> str:
    apart = _apart(wanted, got)
    away = f"{apart:.1e} off" if math.isfinite(apart) else "which is not among the reference's best"
    return (
        f"token {place} of the answer: expected {wanted.token_id} ({wanted.logprob:.6f}), "
        f"found {got.token_id} ({got.logprob:.6f}), {away}"
    )
