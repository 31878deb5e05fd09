"""How a decode step is timed, of any engine: from step to step of one run, while all of its requests decode."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .shapes import OUT, PROMPT, prompts

Moments = list[float]
"""When a run began, and when each of its steps was done: seconds."""
Run = Callable[[list[list[int]], int], Moments]
"""Of prompts, and of how many tokens each answer has."""
LINE = 16
"""Every so many tokens a request begins a page, and its state is folded."""


@contextmanager
def noted(engine: Any) -> Iterator[Moments]:
    """Of what is run meanwhile, by an engine whose `step` returns when another step is done."""
    moments, step = [time.perf_counter()], engine.step

    def stepped() -> Any:
        found = step()
        moments.append(time.perf_counter())
        return found

    engine.step = stepped
    try:
        yield moments
    finally:
        engine.step = step


def step_ms(moments: Moments, out: int) -> float:
    """The mean of whole lines of steps, in which all requests decode. Those steps that a run has more than `out` pass
    before the last request has its first token, and again after the first one has its last."""
    steps = len(moments) - 1
    first, last = steps - out + 2, out - 1
    count = (last - first) // LINE * LINE
    if count < LINE:
        raise ValueError(f"{steps} steps for answers of {out} tokens: too few in which all requests decode")
    return 1e3 * (moments[last] - moments[last - count]) / count


def steady(name: str, batch: int, reps: int, run: Run, *, out: int = OUT) -> dict[str, Any]:
    """Medians over the repetitions: one that the host has held up does not change them."""
    run(prompts(name, batch, PROMPT, 1), out // 2)  # compiles what is left
    prefills, steps = [], []
    for rep in range(reps):
        given = prompts(name, batch, PROMPT, 2 + rep)
        moments = run(given, 1)
        prefills.append(moments[-1] - moments[0])
        steps.append(step_ms(run(given, out), out))
    step = statistics.median(steps)
    return {
        "model": name,
        "batch": batch,
        "reps": reps,
        "step_ms": step,
        "step_range_ms": [min(steps), max(steps)],
        "tokens_per_s": 1e3 * batch / step,
        "prefill_tokens_per_s": batch * PROMPT / statistics.median(prefills),
    }


def line(row: dict[str, Any]) -> str:
    least, most = row["step_range_ms"]
    return (
        f"{row['model']:15} batch {row['batch']:4}  step {row['step_ms']:7.3f} ms ({least:.3f} to {most:.3f})  "
        f"{row['tokens_per_s']:8.0f} tok/s  prefill {row['prefill_tokens_per_s']:8.0f} tok/s"
    )
