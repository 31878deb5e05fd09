"""Sampling once more, in numpy and float64, one token after the other; written from the definitions alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast import SamplingParams

Floats = NDArray[np.float64]


def adjusted(
    logits: Floats,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    stops: Sequence[int] = (),
) -> Floats:
    changed = logits.astype(np.float64).copy()
    for token, bias in params.logit_bias.items():
        changed[token] += bias
    for token in set(prompt) | set(output):
        factor = params.repetition_penalty
        changed[token] = changed[token] / factor if changed[token] > 0 else changed[token] * factor
    for token in set(output):
        changed[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    if len(output) < params.min_tokens:
        changed[list(stops)] = -np.inf
    return changed


def distribution(logits: Floats, params: SamplingParams) -> Floats:
    """The probability of each token to be chosen."""
    if params.temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    weights = np.exp((logits - logits.max()) / params.temperature)
    ranked = sorted(range(len(logits)), key=lambda token: -weights[token])
    ranked = ranked[: params.top_k or None]
    total, kept, mass = sum(weights[token] for token in ranked), [], 0.0
    for token in ranked:
        if params.top_p < 1 and mass >= params.top_p * total:
            break
        kept.append(token)
        mass += weights[token]
    kept = [token for token in kept if weights[token] >= params.min_p * weights[ranked[0]]]
    chances = np.zeros(len(logits))
    chances[kept] = weights[kept] / weights[kept].sum()
    return chances


def chi_square(counts: NDArray[np.int64], chances: Floats) -> float:
    """How many times the value that only one experiment in a million exceeds; impossible outcomes are infinite."""
    if counts[chances == 0].any():
        return np.inf
    possible = chances > 0
    expected = chances[possible] * counts.sum()
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    return statistic / critical(freedom) if freedom else 0.0


def critical(freedom: int, z: float = 4.753) -> float:
    """Wilson and Hilferty's approximation of the chi-square quantile at one in a million."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + z * spread**0.5) ** 3
