"""What the sanitizer's stamps cost a decode step: two engines with the same weights, measured in turn."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from .models import serving, timed
from .shapes import OUT, PROMPT, prompts

BATCH = 64


def measure(name: str, reps: int) -> dict[str, Any]:
    """A step as `timing` has it. Findings would raise; answers must be equal."""
    steps: dict[str, list[float]] = {"off": [], "stamps": []}
    equal = True
    with ExitStack() as stack:
        engines = {
            mode: stack.enter_context(
                serving(name, BATCH, max_model_len=1024, memory="40GiB", sanitizer=mode)
            )
            for mode in steps
        }
        for rep in range(reps + 1):
            given = prompts(name, BATCH, PROMPT, rep)
            answers = []
            for mode in steps if rep % 2 else reversed(steps):
                half, (whole, tokens) = (
                    timed(engines[mode], given, OUT // 2)[0],
                    timed(engines[mode], given, OUT),
                )
                answers.append(tokens)
                if rep:  # the first compiles
                    steps[mode].append(1e3 * (whole - half) / (OUT - OUT // 2))
            equal &= answers[0] == answers[1]
    off, on = (statistics.median(steps[mode]) for mode in steps)
    return {
        "model": name,
        "batch": BATCH,
        "off_ms": off,
        "stamps_ms": on,
        "share": on / off - 1,
        "ranges_ms": {mode: [min(its), max(its)] for mode, its in steps.items()},
        "equal_outputs": equal,
    }


def line(row: dict[str, Any]) -> str:
    ranges = "; ".join(
        f"{mode} {least:.3f} to {most:.3f}" for mode, (least, most) in row["ranges_ms"].items()
    )
    return (
        f"{row['model']} batch {row['batch']}: {row['off_ms']:.3f} ms, with stamps {row['stamps_ms']:.3f} "
        f"({row['share']:+.2%}; {ranges}), {'equal' if row['equal_outputs'] else 'OTHER'} answers"
    )
