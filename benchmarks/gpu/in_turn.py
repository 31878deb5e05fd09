"""Two engines with the same weights, measured in turn: what one option makes of a decode step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from .models import serving, timed
from .shapes import prompts
from .timing import step_ms

Answers = list[list[int]]


class Measured(NamedTuple):
    steps_ms: dict[str, list[float]]
    """Of each way, in every repetition."""
    answers: list[tuple[Answers, Answers]]
    """Of every repetition, in the order of the ways."""

    @property
    def medians(self) -> list[float]:
        return [statistics.median(steps) for steps in self.steps_ms.values()]

    @property
    def ranges(self) -> dict[str, list[float]]:
        return {way: [min(steps), max(steps)] for way, steps in self.steps_ms.items()}

    @property
    def ratios(self) -> list[float]:
        """The second way against the first, right before or after it."""
        one, other = self.steps_ms.values()
        return [b / a for a, b in zip(one, other, strict=True)]


def measure(
    name: str, batch: int, reps: int, ways: Mapping[str, Mapping[str, Any]], *, prompt: int, out: int
) -> Measured:
    """ways: two, each with the options of its engine."""
    steps: dict[str, list[float]] = {way: [] for way in ways}
    answers: list[tuple[Answers, Answers]] = []
    with ExitStack() as stack:
        engines = {way: stack.enter_context(serving(name, batch, **options)) for way, options in ways.items()}
        for rep in range(reps + 1):
            given, told = prompts(name, batch, prompt, rep), {}
            for way in ways if rep % 2 else reversed(ways):
                moments, told[way] = timed(engines[way], given, out)
                if rep:  # the first compiles
                    steps[way].append(step_ms(moments, out))
            one, other = (told[way] for way in ways)
            answers.append((one, other))
    return Measured(steps, answers)


def ranges(row: dict[str, Any]) -> str:
    each = row["ranges_ms"].items()
    return "; ".join(f"{way} {least:.3f} to {most:.3f}" for way, (least, most) in each)
