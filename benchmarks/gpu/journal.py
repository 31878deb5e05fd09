"""The journal against read-modify-write, from end to end: two engines with the same weights, measured in turn.

One has a line at every token (`fold_every=1`): then the state is rewritten for each of them."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from .models import serving, timed
from .shapes import prompts

MODEL, BATCH = "qwen3.5-4b", 256
PROMPT, OUT, CHECKED = 128, 96, 16
LINES = {"journal": 16, "rewritten": 1}


def measure(reps: int) -> dict[str, Any]:
    steps: dict[str, list[float]] = {way: [] for way in LINES}
    alike = 0
    with ExitStack() as stack:
        engines = {
            way: stack.enter_context(
                serving(MODEL, BATCH, max_model_len=256, memory="50GiB", fold_every=fold_every)
            )
            for way, fold_every in LINES.items()
        }
        for rep in range(reps + 1):
            given = prompts(MODEL, BATCH, PROMPT, rep)
            answers = []
            for way in LINES if rep % 2 else reversed(LINES):
                half, (whole, tokens) = (
                    timed(engines[way], given, OUT // 2)[0],
                    timed(engines[way], given, OUT),
                )
                answers.append(tokens)
                if rep:  # the first compiles
                    steps[way].append(1e3 * (whole - half) / (OUT - OUT // 2))
            alike = sum(a[:CHECKED] == b[:CHECKED] for a, b in zip(*answers, strict=True))
    journal, rewritten = (statistics.median(steps[way]) for way in LINES)
    return {
        "model": MODEL,
        "batch": BATCH,
        "journal_ms": journal,
        "rewritten_ms": rewritten,
        "ratio": rewritten / journal,
        "ranges_ms": {way: [min(its), max(its)] for way, its in steps.items()},
        "begin_alike": alike,
    }


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']} batch {row['batch']}: journal {row['journal_ms']:.3f} ms a step, rewritten "
        f"{row['rewritten_ms']:.3f} ({row['ratio']:.2f}x; {row['ranges_ms']}), {row['begin_alike']} answers "
        "begin alike"
    )
