"""Steady decode and prefill, beside the floor; first tokens compared with an engine that records nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast import LLM

from . import timing
from .models import floor, serving, timed
from .shapes import OUT, PROMPT, prompts

CHECKED = 32


def measure(
    name: str, batches: list[int], reps: int, rates: tuple[float, float], *, checked: bool, profiled: bool
) -> Iterator[dict[str, Any]]:
    """A row for each batch; if checked, once more when it has been compared."""
    found: list[dict[str, Any]] = []
    answers: dict[int, tuple[list[list[int]], list[list[int]]]] = {}
    with serving(name, max(batches), max_model_len=1024) as llm:
        for batch in batches:

            def run(given: list[list[int]], tokens: int, batch: int = batch) -> timing.Moments:
                moments, told = timed(llm, given, tokens)
                answers[batch] = given, told  # the last run's are kept
                return moments

            row = timing.steady(name, batch, reps, run)
            least = floor(llm, name, batch, PROMPT + 3 * OUT // 4, *rates)
            row |= {"floor_ms": 1e3 * least, "of_floor": 1e3 * least / row["step_ms"]}
            found.append(row)
            yield row
            if profiled:
                kernels(llm, prompts(name, batch, PROMPT, 1))
    if checked:
        with serving(name, max(batches), max_model_len=1024, eager=True) as llm:
            for row in found:
                given, tokens = answers[row["batch"]]
                expected = timed(llm, given, OUT)[1]
                pairs = zip(expected, tokens, strict=True)
                row["equal_to_eager"] = sum(a[:CHECKED] == b[:CHECKED] for a, b in pairs)
                yield row


def line(row: dict[str, Any]) -> str:
    equal = f"  equal to eager {row['equal_to_eager']}" if "equal_to_eager" in row else ""
    return f"{timing.line(row)}  floor {row['floor_ms']:6.3f} ms ({row['of_floor']:.0%}){equal}"


def kernels(llm: LLM, given: list[list[int]]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        timed(llm, given, 32)
    rows = sorted(recorded.key_averages(), key=lambda e: e.self_device_time_total, reverse=True)[:28]
    for event in rows:
        print(f"   {event.self_device_time_total / 1e3:9.2f} ms {event.count:7} x  {event.key[:90]}")
