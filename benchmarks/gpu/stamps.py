"""What the sanitizer's stamps cost a decode step: two engines with the same weights, measured in turn."""

from __future__ import annotations

import statistics
from typing import Any

from . import in_turn
from .shapes import PROMPT

BATCH, OUT = 64, 64


WAYS = {mode: dict(max_model_len=1024, memory="40GiB", sanitizer=mode) for mode in ("off", "stamps")}


def measure(name: str, reps: int) -> dict[str, Any]:
    """Findings would raise; answers must be equal."""
    found = in_turn.measure(name, BATCH, reps, WAYS, prompt=PROMPT, out=OUT)
    off, on = found.medians
    shares = [ratio - 1 for ratio in found.ratios]
    return {
        "model": name,
        "batch": BATCH,
        "off_ms": off,
        "stamps_ms": on,
        "share": statistics.median(shares),
        "share_range": [min(shares), max(shares)],
        "ranges_ms": found.ranges,
        "equal_outputs": all(one == other for one, other in found.answers),
    }


def line(row: dict[str, Any]) -> str:
    least, most = row["share_range"]
    return (
        f"{row['model']} batch {row['batch']}: {row['off_ms']:.3f} ms, with stamps {row['stamps_ms']:.3f} "
        f"({row['share']:+.2%}, {least:+.2%} to {most:+.2%}; {in_turn.ranges(row)}), "
        f"{'equal' if row['equal_outputs'] else 'OTHER'} answers"
    )
