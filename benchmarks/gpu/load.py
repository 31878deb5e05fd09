"""Long prompts that arrive while others decode: what those wait between tokens, and these for their first."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from holdfast import AsyncLLM, SamplingParams

from .models import give_back, options
from .shapes import MODELS, folder, prompts

DECODES, PROMPT, OUT = 64, 512, 384
ARRIVALS, LONG, ANSWER, EVERY = 8, 8192, 8, 0.25
CHUNK = 2048
Figures = dict[str, float]


async def stream(llm: AsyncLLM, prompt: list[int], tokens: int) -> list[float]:
    """When each token came. What an output brings together came at once."""
    seen: list[float] = []
    async for output in llm.generate(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True)):
        now, count = time.perf_counter(), len(output.token_ids)
        seen += [now] * (count - len(seen))
    return seen


async def run(llm: AsyncLLM, name: str, arrivals: int, seed: int) -> Figures:
    """Intervals of those that decode, from when all of them do until the first has ended."""
    short, long = prompts(name, DECODES, PROMPT, seed), prompts(name, max(1, arrivals), LONG, seed + 1)
    begun = time.perf_counter()

    async def arrive(nth: int) -> float:
        await asyncio.sleep(EVERY * (nth + 2))
        asked = time.perf_counter()
        return (await stream(llm, long[nth], ANSWER))[0] - asked

    decoding = asyncio.gather(*(stream(llm, prompt, OUT) for prompt in short))
    arriving = asyncio.gather(*(arrive(nth) for nth in range(arrivals)))
    times, firsts = await decoding, await arriving
    start, end = max(seen[0] for seen in times), min(seen[-1] for seen in times)
    waits = [b - a for seen in times for a, b in itertools.pairwise(seen) if start <= a and b <= end]
    return {
        "seconds": time.perf_counter() - begun,
        **_quantiles("inter_token", waits),
        **_quantiles("first_token", firsts),
    }


def _quantiles(what: str, seconds: list[float]) -> Figures:
    ordered = sorted(seconds)
    return {
        f"{what}_p{share}_ms": 1e3 * ordered[min(len(ordered) - 1, share * len(ordered) // 100)]
        for share in (50, 99)
        if ordered
    }


async def both(name: str) -> dict[str, Any]:
    with folder(MODELS[name]) as directory:
        lanes = DECODES + ARRIVALS
        limits = {"max_model_len": LONG + 64, "max_num_batched_tokens": CHUNK}
        async with AsyncLLM(directory, **options(lanes, **limits)) as llm:
            await run(llm, name, ARRIVALS, 0)  # compiles
            return {
                "model": name,
                "decodes": DECODES,
                "arrivals": ARRIVALS,
                "arriving_tokens": LONG,
                "batched_tokens": CHUNK,
                "alone": await run(llm, name, 0, 2),
                "mixed": await run(llm, name, ARRIVALS, 4),
            }


def measure(name: str) -> dict[str, Any]:
    try:
        return asyncio.run(both(name))
    finally:
        give_back()


def line(row: dict[str, Any]) -> str:
    def told(kind: str) -> str:
        figures = {key: value for key, value in row[kind].items() if key != "seconds"}
        return f"{kind}: " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items())

    return f"{row['model']}, {row['decodes']} decode, {told('alone')}; {told('mixed')}"
