"""An engine alone: how long one batch takes, and how much it gets done."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..request import SamplingParams
from .report import percentile

if TYPE_CHECKING:
    from ..llm import LLM


def prompts(llm: LLM, count: int, length: int, seed: int) -> list[list[int]]:
    """Random tokens: nothing to reuse, and no text that a tokenizer would shorten."""
    source, vocabulary = random.Random(seed), llm.capacity.limits.vocab_size
    return [[source.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def latency(
    llm: LLM, batch: int, input_len: int, output_len: int, rounds: int, on_round: Callable[[], None]
) -> dict[str, Any]:
    """The same batch again and again, each time with other prompts; the first round warms up and is not counted."""
    params = SamplingParams(max_tokens=output_len, ignore_eos=True)
    whole, first, step = [], [], []
    for number in range(rounds + 1):
        given = prompts(llm, batch, input_len, seed=number)
        began = time.perf_counter()
        outputs = llm.generate(given, params, progress=False)
        if number:
            whole.append(1e3 * (time.perf_counter() - began))
            firsts = [o.metrics.first_token - o.metrics.arrived for o in outputs if o.metrics.first_token]
            first.append(1e3 * max(firsts))
            step.append((whole[-1] - first[-1]) / max(1, output_len - 1))
        on_round()
    asked = {"batch": batch, "input_len": input_len, "output_len": output_len, "rounds": rounds}
    measured = {"ttft": first, "tpot": step, "e2el": whole}
    return asked | {
        f"{name}_ms": {"mean": sum(values) / len(values)}
        | {f"p{share}": percentile(values, share) for share in (50, 90, 95, 99)}
        for name, values in measured.items()
    }


def throughput(llm: LLM, count: int, input_len: int, output_len: int, seed: int) -> dict[str, Any]:
    """All at once, as much as fits."""
    given = prompts(llm, count, input_len, seed)
    began = time.perf_counter()
    outputs = llm.generate(given, SamplingParams(max_tokens=output_len, ignore_eos=True))
    seconds = time.perf_counter() - began
    made = sum(len(output.token_ids) for output in outputs)
    return {
        "requests": count,
        "input_len": input_len,
        "output_len": output_len,
        "seconds": seconds,
        "requests_per_second": count / seconds,
        "output_tokens_per_second": made / seconds,
        "total_tokens_per_second": (made + count * input_len) / seconds,
    }
