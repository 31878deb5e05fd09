"""How a decode step is timed, of any engine: by runs of two lengths that share the same prefill."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from .shapes import OUT, PROMPT, prompts

Run = Callable[[list[list[int]], int], float]
"""Prompts, and how many tokens each answer has, to seconds."""


def steady(name: str, batch: int, reps: int, run: Run, *, out: int = OUT) -> dict[str, Any]:
    """A step is (T(out) - T(out / 2)) / (out / 2), of the medians of both over the repetitions: one run that the host
    has held up changes neither. The range is that of the repetitions' own differences."""
    run(prompts(name, batch, PROMPT, 1), out // 2)  # compiles what is left
    ones, halves, wholes = [], [], []
    for rep in range(reps):
        given = prompts(name, batch, PROMPT, 2 + rep)
        ones.append(run(given, 1))
        halves.append(run(given, out // 2))
        wholes.append(run(given, out))
    rest = out - out // 2
    step = (statistics.median(wholes) - statistics.median(halves)) / rest
    steps = [(whole - half) / rest for whole, half in zip(wholes, halves, strict=True)]
    return {
        "model": name,
        "batch": batch,
        "reps": reps,
        "step_ms": 1e3 * step,
        "step_range_ms": [1e3 * min(steps), 1e3 * max(steps)],
        "tokens_per_s": batch / step,
        "prefill_tokens_per_s": batch * PROMPT / statistics.median(ones),
    }


def line(row: dict[str, Any]) -> str:
    least, most = row["step_range_ms"]
    return (
        f"{row['model']:15} batch {row['batch']:4}  step {row['step_ms']:7.3f} ms ({least:.3f} to {most:.3f})  "
        f"{row['tokens_per_s']:8.0f} tok/s  prefill {row['prefill_tokens_per_s']:8.0f} tok/s"
    )
