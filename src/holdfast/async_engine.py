"""The same loop behind asyncio: steps run in a thread, everything else between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .answer import Answer, make_output, raise_corruption
from .cache import CacheStats
from .memory.capacity import CapacityPlan
from .prompts import Message, Prompt
from .request import Acceptance, RequestOutput, SamplingParams
from .service import Service


class AsyncLLM:
    """A model for programs that do other things meanwhile.

        async with AsyncLLM("path/to/model") as llm:
            async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=64)):
                ...

    model        as for LLM
    max_pending  requests that may be running or waiting; further ones wait for room before they are queued
    options      any field of EngineConfig
    """

    def __init__(self, model: str | Path | None = None, *, max_pending: int = 1024, **options: Any) -> None:
        if max_pending < 1:
            raise ValueError(f"max_pending={max_pending} must be at least 1")
        self._service = Service(model, options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast")
        self._room = asyncio.Semaphore(max_pending)
        self._between_steps = asyncio.Lock()  # held while a step runs: the engine knows one thread at a time
        self._loop: asyncio.Task[None] | None = None
        self._news: dict[str, asyncio.Event] = {}  # by request: it grew, or ended
        self._closed = False

    @property
    def capacity(self) -> CapacityPlan:
        """What was given to weights, pools and tables, and how much fits."""
        return self._service.capacity

    def cache_stats(self) -> CacheStats:
        """What prefix reuse did so far, and what it holds."""
        return self._service.engine.scheduler.cache_stats()

    def speculation_stats(self) -> Acceptance:
        """Drafts so far, and how many of them were accepted."""
        return self._service.engine.scheduler.speculation_stats()

    async def reset_prefix_cache(self) -> None:
        """Forget all prefixes. Requests that run keep what they have; none will resume from it."""
        async with self._between_steps:
            self._service.engine.scheduler.reset_cache()

    def default_params(self) -> SamplingParams:
        """What the model's generation_config.json advises; used wherever no params are given."""
        return self._service.intake.default_params()

    async def generate(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncIterator[RequestOutput]:
        """The output so far, each time there is more of it. Leaving the iteration cancels the request.

        A slow reader misses nothing and delays nobody: the next output it sees holds all that came meanwhile.
        """
        params = self.default_params() if params is None else params
        async with self._room:
            answers = await self._submit(prompt, params)
            news = self._news[answers[0].request.id]
            shown = 0
            try:
                while True:
                    ended = all(answer.finished for answer in answers)
                    length = sum(answer.length for answer in answers)
                    if ended or length > shown:
                        shown = length
                        yield make_output(answers)
                    if ended:
                        raise_corruption(answers)
                        return
                    await self._next(news)
            finally:
                await self._let_go(answers)

    async def aclose(self) -> None:
        """Cancel whatever runs and end the thread."""
        self._closed = True
        for news in self._news.values():
            news.set()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
        await asyncio.to_thread(self._thread.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _submit(self, prompt: Prompt | Sequence[Message], params: SamplingParams) -> list[Answer]:
        if self._closed:
            raise RuntimeError("this AsyncLLM is closed; make a new one")
        tokens = await asyncio.to_thread(
            self._service.intake.tokens, prompt
        )  # a long prompt must not stall others
        async with self._between_steps:
            answers = self._service.submit(tokens, params, streaming=True)
        news = asyncio.Event()
        for answer in answers:
            self._news[answer.request.id] = news
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        return answers

    async def _run(self) -> None:
        """Step while there is work. If a step fails, everyone who waits is told."""
        here = asyncio.get_running_loop()
        try:
            while self._service.engine.has_work:
                async with self._between_steps:
                    changed = await here.run_in_executor(self._thread, self._service.step)
                for answer in changed:
                    if news := self._news.get(answer.request.id):
                        news.set()
        finally:
            for news in self._news.values():
                news.set()

    async def _next(self, news: asyncio.Event) -> None:
        await news.wait()
        news.clear()
        if self._closed:
            raise RuntimeError("this AsyncLLM was closed while the request ran")
        if self._loop is not None and self._loop.done():
            self._loop.result()  # raises what ended the loop, if anything did

    async def _let_go(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._news.pop(answer.request.id, None)
        if not self._closed:
            async with self._between_steps:
                self._service.let_go(answers)
