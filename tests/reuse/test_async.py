from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import AsyncLLM, RequestOutput

from .test_hits import SIZES, bits, cold, params, prompt


async def answer(llm: AsyncLLM, given: list[int], count: int) -> RequestOutput:
    async for output in llm.generate(given, params(count)):
        last = output
    return last


def test_requests_that_run_beside_each_other_share_and_forget(directory: Path) -> None:
    stem = prompt(70)
    asked = [[*stem, *prompt(4, n)] for n in range(3)]

    async def run() -> list[RequestOutput]:
        async with AsyncLLM(directory, **SIZES) as llm:
            together = await asyncio.gather(*(answer(llm, one, 5) for one in asked))
            assert sum(output.cached_tokens for output in together) >= 64
            again = await answer(llm, asked[0], 5)
            assert again.cached_tokens == 64
            assert llm.cache_stats().counters.requests == 4
            await llm.reset_prefix_cache()
            fresh = await answer(llm, asked[0], 5)
            assert fresh.cached_tokens == 0
            return [*together, again, fresh]

    outputs = asyncio.run(run())
    expected = cold(directory, asked, 5)
    assert bits(outputs) == bits([*expected, expected[0], expected[0]])
