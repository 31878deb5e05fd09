"""Long prompts that arrive while others decode: what those wait between tokens, and these for their first."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from typing import Any

import torch

from holdfast import AsyncLLM, SamplingParams

from .models import folder, options, prompts

DECODES, PROMPT, OUT = 64, 512, 384
ARRIVALS, LONG, EVERY = 8, 8192, 0.25
CHUNK = 2048


async def stream(llm: AsyncLLM, prompt: list[int], tokens: int) -> list[float]:
    """When each output came, after the request was made."""
    begun, seen = time.perf_counter(), []
    async for _ in llm.generate(prompt, SamplingParams(max_tokens=tokens, ignore_eos=True)):
        seen.append(time.perf_counter() - begun)
    return seen


async def run(llm: AsyncLLM, name: str, arrivals: int, seed: int) -> dict[str, float]:
    short, long = prompts(name, DECODES, PROMPT, seed), prompts(name, max(1, arrivals), LONG, seed + 1)

    async def arrive(nth: int) -> list[float]:
        await asyncio.sleep(EVERY * (nth + 2))  # when all decode
        return await stream(llm, long[nth], 8)

    decoding = asyncio.gather(*(stream(llm, prompt, OUT) for prompt in short))
    arriving = asyncio.gather(*(arrive(nth) for nth in range(arrivals)))
    waits = [b - a for seen in await decoding for a, b in itertools.pairwise(seen[8:])]
    firsts = [seen[0] for seen in await arriving]
    found = {
        "inter_token_p50_ms": 1e3 * _quantile(waits, 0.5),
        "inter_token_p99_ms": 1e3 * _quantile(waits, 0.99),
    }
    if firsts:
        found |= {
            "first_token_p50_ms": 1e3 * _quantile(firsts, 0.5),
            "first_token_p99_ms": 1e3 * _quantile(firsts, 0.99),
        }
    return found


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def both(name: str) -> dict[str, Any]:
    with folder(name) as directory:
        lanes = DECODES + ARRIVALS
        async with AsyncLLM(
            directory, **options(lanes, max_model_len=LONG + 64, max_num_batched_tokens=CHUNK)
        ) as llm:
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
    found = asyncio.run(both(name))
    gc.collect()
    torch.cuda.empty_cache()
    for kind in ("alone", "mixed"):
        print(
            f"{name} {kind}: " + ", ".join(f"{key} {value:.2f}" for key, value in found[kind].items()),
            flush=True,
        )
    return found
