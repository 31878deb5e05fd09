"""An evaluation for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .run import Outcome

COLUMNS: tuple[str, ...] = ("set", "questions", "tokens", "result", "ties", "worst", "right", "everything on")
COLUMNS += ("resumed", "accepted", "seconds", "everything on")
SHOWN = 3
"""Differences of a set; the rest are counted."""


def render(outcomes: Sequence[Outcome]) -> str:
    """A line for each set; below one that differs, what differs."""
    rows = [COLUMNS, *(_row(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [_line(COLUMNS, widths)]
    for outcome, row in zip(outcomes, rows[1:], strict=True):
        lines.append(_line(row, widths))
        lines += [f"    {told}" for told in outcome.differing[:SHOWN]]
        if len(outcome.differing) > SHOWN:
            lines.append(f"    and {len(outcome.differing) - SHOWN} more")
    return "\n".join(lines)


def as_dict(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "equal": all(outcome.equal for outcome in outcomes),
        "sets": [
            asdict(it) | {"worst": it.worst if math.isfinite(it.worst) else None} for it in outcomes
        ],  # JSON knows no infinity
    }


def _row(it: Outcome) -> tuple[str, ...]:
    return (
        it.name,
        str(it.questions),
        str(it.tokens),
        "equal" if it.equal else "differs",
        str(it.ties),
        f"{it.worst:.1e}",
        _share(it.right_plain, it.questions),
        _share(it.right, it.questions),
        str(it.resumed_tokens),
        "" if it.accept_length is None else f"{it.accept_length:.2f}",
        f"{it.seconds_plain:.1f}",
        f"{it.seconds:.1f}",
    )


def _share(right: int | None, questions: int) -> str:
    return "" if right is None else f"{right / questions:.1%}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    left, *rest = zip(row, widths, strict=True)
    return "  ".join([left[0].ljust(left[1]), *(text.rjust(width) for text, width in rest)]).rstrip()
