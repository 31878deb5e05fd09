"""A verification for people and for programs."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..config import EngineConfig
from .matrix import DIFFERS, SKIPPED, Outcome

COLUMNS = ("cell", "result", "answers", "tokens", "ties", "worst", "seconds")


def render(outcomes: Sequence[Outcome], again: str) -> str:
    """A line for each cell; below one that differs, what differs and how to see it again."""
    rows = [COLUMNS, *(_row(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [_line(rows[0], widths)]
    for outcome, row in zip(outcomes, rows[1:], strict=True):
        lines.append(f"{_line(row, widths)}  {_remark(outcome)}".rstrip())
        if outcome.result == DIFFERS:
            lines += textwrap.wrap(outcome.detail, 106, initial_indent="    ", subsequent_indent="    ")
            lines.append(f"    again: {again} --cell {outcome.cell}")
    return "\n".join([*lines, "", summary(outcomes)])


def summary(outcomes: Sequence[Outcome]) -> str:
    results = [outcome.result for outcome in outcomes]
    counted = ", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results))
    return f"{len(outcomes)} cells: {counted}; {sum(f.seconds for f in outcomes):.0f} s"


def as_dict(outcomes: Sequence[Outcome], again: str) -> dict[str, Any]:
    def cell(outcome: Outcome) -> dict[str, Any]:
        worst = outcome.worst if math.isfinite(outcome.worst) else None  # JSON knows no infinity
        return asdict(outcome) | {"worst": worst, "again": f"{again} --cell {outcome.cell}"}

    return {"equal": all_equal(outcomes), "cells": [cell(outcome) for outcome in outcomes]}


def all_equal(outcomes: Sequence[Outcome]) -> bool:
    return not any(outcome.result == DIFFERS for outcome in outcomes)


def command(model: str | None, seed: int, *, quick: bool, **options: str) -> str:
    """The command line that repeats this verification."""
    words = ["holdfast", "verify", *([model] if model else [])]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value] if value != getattr(EngineConfig, name) else []
    return shlex.join([*words, *(["--quick"] if quick else []), "--seed", str(seed)])


def _row(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.answers:
        return (outcome.cell, outcome.result, "", "", "", "", f"{outcome.seconds:.1f}")
    counts = (outcome.answers, outcome.positions, outcome.ties)
    return (outcome.cell, outcome.result, *map(str, counts), f"{outcome.worst:.1e}", f"{outcome.seconds:.1f}")


def _remark(outcome: Outcome) -> str:
    if outcome.result == SKIPPED:
        return outcome.detail
    return ", ".join(f"{count} {what}" for what, count in outcome.happened.items())


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    words = [
        text.ljust(width) if column < 2 else text.rjust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(words).rstrip()
