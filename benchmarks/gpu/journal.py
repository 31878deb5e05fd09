"""The journal against read-modify-write, from end to end: two engines with the same weights, measured in turn.

One has a line at every token (`fold_every=1`): then the state is rewritten for each of them."""

from __future__ import annotations

import statistics
from typing import Any

from . import in_turn

MODEL, BATCH = "qwen3.5-4b", 256
PROMPT, OUT, CHECKED = 128, 96, 16
WAYS = {
    way: dict(max_model_len=256, memory="50GiB", fold_every=fold_every)
    for way, fold_every in {"journal": 16, "rewritten": 1}.items()
}


def measure(reps: int) -> dict[str, Any]:
    found = in_turn.measure(MODEL, BATCH, reps, WAYS, prompt=PROMPT, out=OUT)
    journal, rewritten = found.medians
    return {
        "model": MODEL,
        "batch": BATCH,
        "journal_ms": journal,
        "rewritten_ms": rewritten,
        "ratio": statistics.median(found.ratios),
        "ranges_ms": found.ranges,
        "begin_alike": sum(a[:CHECKED] == b[:CHECKED] for a, b in zip(*found.answers[-1], strict=True)),
    }


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']} batch {row['batch']}: journal {row['journal_ms']:.3f} ms a step, rewritten "
        f"{row['rewritten_ms']:.3f} ({row['ratio']:.2f}x; {in_turn.ranges(row)}), {row['begin_alike']} answers "
        "begin alike"
    )
