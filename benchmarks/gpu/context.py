"""One request with ever more context: what a token costs, in prefill and in decode."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from holdfast import LLM, SamplingParams

from .models import serving, timed
from .shapes import prompts

LENGTHS = (1024, 8192, 32768, 65536, 126_976)
"""LFM2 has 128,000 positions."""
OUT = 64


def measure(name: str) -> Iterator[dict[str, Any]]:
    with serving(name, 1, max_model_len=max(LENGTHS) + 2 * OUT) as llm:
        timed(llm, prompts(name, 1, 4096, 0), OUT)  # compiles what is left
        for length in LENGTHS:
            begun, times = time.perf_counter(), token_times(llm, prompts(name, 1, length, 1)[0])
            yield {
                "model": name,
                "context": length,
                "decode_ms": 1e3 * (times[-1] - times[1]) / (len(times) - 2),
                "prefill_us_per_token": 1e6 * (times[0] - begun) / length,
            }


def token_times(llm: LLM, prompt: list[int]) -> list[float]:
    """When each token of an answer came."""
    times: list[float] = []
    for output in llm.stream(prompt, SamplingParams(max_tokens=OUT, ignore_eos=True)):
        times += [time.perf_counter()] * (len(output.token_ids) - len(times))
    return times


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']} context {row['context']:7}: decode {row['decode_ms']:.3f} ms, "
        f"prefill {row['prefill_us_per_token']:.2f} us a token"
    )
