"""The journal against read-modify-write, from end to end: the same engine with a line at every token, which rewrites
the state for each of them (`fold_every=1`)."""

from __future__ import annotations

import statistics
from typing import Any

from .models import prompts, serving, timed

PROMPT, OUT, CHECKED = 128, 96, 16
LINES = {"journal": 16, "rewritten": 1}


def measure(name: str, batch: int, reps: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    answers: dict[str, list[list[int]]] = {}
    for way, fold_every in LINES.items():
        with serving(name, batch, max_model_len=512, fold_every=fold_every) as llm:
            timed(llm, prompts(name, batch, PROMPT, 1), OUT // 3)  # compiles
            steps = []
            for rep in range(reps):
                given = prompts(name, batch, PROMPT, 2 + rep)
                half = timed(llm, given, OUT // 2)[0]
                whole, answers[way] = timed(llm, given, OUT)
                steps.append(2 * (whole - half) / OUT)
        step = statistics.median(steps)
        found.append({"model": name, "batch": batch, "way": way, "step_ms": 1e3 * step})
        print(f"{name} batch {batch} {way}: step {1e3 * step:.3f} ms, {batch / step:.0f} tok/s", flush=True)
    equal = sum(a[:CHECKED] == b[:CHECKED] for a, b in zip(*answers.values(), strict=True))
    print(
        f"journal {found[1]['step_ms'] / found[0]['step_ms']:.2f}x; {equal} of {batch} answers begin alike",
        flush=True,
    )
    return found
