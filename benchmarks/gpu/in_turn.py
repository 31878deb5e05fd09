"""Two engines with the same weights, measured in turn: what one option makes of a decode step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from .models import serving, timed
from .shapes import prompts

Answers = list[list[int]]


class Measured(NamedTuple):
    steps_ms: dict[str, float]
    """Of each way, by `timing`'s rule."""
    ranges_ms: dict[str, list[float]]
    answers: list[tuple[Answers, Answers]]
    """Of every repetition, in the order of the ways."""


def measure(
    name: str, batch: int, reps: int, ways: Mapping[str, Mapping[str, Any]], *, prompt: int, out: int
) -> Measured:
    """ways: two, each with the options of its engine."""
    halves, wholes = ({way: [] for way in ways} for _ in range(2))
    answers: list[tuple[Answers, Answers]] = []
    with ExitStack() as stack:
        engines = {way: stack.enter_context(serving(name, batch, **options)) for way, options in ways.items()}
        for rep in range(reps + 1):
            given, told = prompts(name, batch, prompt, rep), {}
            for way in ways if rep % 2 else reversed(ways):
                half = timed(engines[way], given, out // 2)[0]
                whole, told[way] = timed(engines[way], given, out)
                if rep:  # the first compiles
                    halves[way].append(half)
                    wholes[way].append(whole)
            one, other = (told[way] for way in ways)
            answers.append((one, other))
    rest = 1e3 / (out - out // 2)
    steps = {way: rest * (statistics.median(wholes[way]) - statistics.median(halves[way])) for way in ways}
    differences = {
        way: [rest * (whole - half) for whole, half in zip(wholes[way], halves[way], strict=True)]
        for way in ways
    }
    ranges = {way: [min(its), max(its)] for way, its in differences.items()}
    return Measured(steps, ranges, answers)


def ranges(row: dict[str, Any]) -> str:
    each = row["ranges_ms"].items()
    return "; ".join(f"{way} {least:.3f} to {most:.3f}" for way, (least, most) in each)
