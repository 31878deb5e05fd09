"""Steady decode and prefill, beside the floor; first tokens compared with an engine that records nothing."""

from __future__ import annotations

import statistics
from typing import Any

from holdfast import LLM

from .models import floor, prompts, serving, timed

CHECKED = 32
PROMPT, OUT = 512, 128


def measure(
    name: str, batches: list[int], reps: int, copy: float, matmul: float, *, checked: bool, profiled: bool
) -> list[dict[str, Any]]:
    """A decode step is (T(out) - T(out / 2)) / (out / 2): both runs share the same prefill."""
    found: list[dict[str, Any]] = []
    answers: dict[int, tuple[list[list[int]], list[list[int]]]] = {}
    with serving(name, max(batches), max_model_len=1024) as llm:
        for batch in batches:
            timed(llm, prompts(name, batch, PROMPT, 1), OUT // 2)  # compiles what is left
            ones, halves, wholes = [], [], []
            for rep in range(reps):
                given = prompts(name, batch, PROMPT, 2 + rep)
                ones.append(timed(llm, given, 1)[0])
                halves.append(timed(llm, given, OUT // 2)[0])
                seconds, tokens = timed(llm, given, OUT)
                wholes.append(seconds)
            answers[batch] = given, tokens
            steps = [2 * (whole - half) / OUT for whole, half in zip(wholes, halves, strict=True)]
            step = statistics.median(steps)
            least = floor(llm, name, batch, PROMPT + 3 * OUT // 4, copy, matmul)
            found.append(
                {
                    "model": name,
                    "batch": batch,
                    "step_ms": 1e3 * step,
                    "step_range_ms": [1e3 * min(steps), 1e3 * max(steps)],
                    "tokens_per_s": batch / step,
                    "prefill_tokens_per_s": batch * PROMPT / statistics.median(ones),
                    "floor_ms": 1e3 * least,
                    "of_floor": least / step,
                }
            )
            print(line(found[-1]), flush=True)
            if profiled:
                kernels(llm, given)
    if checked:
        with serving(name, max(batches), max_model_len=1024, eager=True) as llm:
            for row in found:
                given, tokens = answers[row["batch"]]
                expected = timed(llm, given, OUT)[1]
                row["equal_to_eager"] = sum(
                    a[:CHECKED] == b[:CHECKED] for a, b in zip(expected, tokens, strict=True)
                )
                print(
                    f"{name}, batch {row['batch']}: {row['equal_to_eager']} answers equal to eager's",
                    flush=True,
                )
    return found


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']:15} batch {row['batch']:4} step {row['step_ms']:7.3f} ms  {row['tokens_per_s']:8.0f} tok/s  "
        f"prefill {row['prefill_tokens_per_s']:8.0f} tok/s  floor {row['floor_ms']:6.3f} ms ({row['of_floor']:.0%})"
        + (f"  equal {row['equal_to_eager']}" if "equal_to_eager" in row else "")
    )


def kernels(llm: LLM, given: list[list[int]]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        timed(llm, given, 32)
    rows = sorted(recorded.key_averages(), key=lambda e: e.self_device_time_total, reverse=True)[:28]
    for event in rows:
        print(f"   {event.self_device_time_total / 1e3:9.2f} ms {event.count:7} x  {event.key[:90]}")
