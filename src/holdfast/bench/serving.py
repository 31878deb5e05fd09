"""Any OpenAI-compatible server under load."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .http import HttpClient, HttpError
from .report import Outcome
from .workloads import Shot


@dataclass(frozen=True)
class Target:
    url: str
    model: str | None = None
    key: str | None = None
    chat: bool = False
    ignore_eos: bool = False
    seed: int = 0
    patience: float = 600.0
    """Seconds for one request."""


async def model_name(target: Target) -> str:
    """The one that was asked for, or the first that the server has."""
    if target.model is not None:
        return target.model
    client = HttpClient(target.url, target.key)
    try:
        return str((await client.json("GET", "/v1/models"))["data"][0]["id"])
    finally:
        await client.close()


async def drive(
    target: Target, shots: Sequence[Shot], concurrency: int, on_end: Callable[[], None] = lambda: None
) -> tuple[list[Outcome], float]:
    """Send each when its time has come and no more than `concurrency` run. All outcomes, and how long it took."""
    client, gate = HttpClient(target.url, target.key), asyncio.Semaphore(concurrency)
    name, began = await model_name(target), time.perf_counter()

    async def fire(shot: Shot) -> Outcome:
        await asyncio.sleep(shot.at - (time.perf_counter() - began))
        async with gate:
            outcome = await send(client, target, _body(target, name, shot))
        on_end()
        return outcome

    try:
        outcomes = await asyncio.gather(*(fire(shot) for shot in shots))
    finally:
        await client.close()
    return outcomes, time.perf_counter() - began


async def send(client: HttpClient, target: Target, body: dict[str, Any]) -> Outcome:
    """One request, streamed. Whatever goes wrong is its outcome."""
    outcome, began, last = Outcome(), time.perf_counter(), 0.0
    try:
        async with asyncio.timeout(target.patience):
            async for data in client.events(
                "/v1/chat/completions" if target.chat else "/v1/completions", body
            ):
                now = time.perf_counter() - began
                if data == b"[DONE]":
                    continue
                told = json.loads(data)
                if "error" in told:
                    raise HttpError(200, data)
                if _has_text(told):
                    if last:
                        outcome.gaps.append(now - last)
                    else:
                        outcome.ttft = now
                    last = now
                _count(outcome, told.get("usage"))
        outcome.end = time.perf_counter() - began
        outcome.output_tokens = outcome.output_tokens or len(outcome.gaps) + 1
        outcome.error = None if last else "the answer was empty"
    except (OSError, HttpError, asyncio.IncompleteReadError, ValueError, TimeoutError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


def _body(target: Target, name: str, shot: Shot) -> dict[str, Any]:
    asked = (
        {"messages": [{"role": "user", "content": shot.prompt}]} if target.chat else {"prompt": shot.prompt}
    )
    body = {"model": name, **asked, "max_tokens": shot.max_tokens, "temperature": 0.0, "seed": target.seed}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | {"ignore_eos": True} if target.ignore_eos else body


def _has_text(told: dict[str, Any]) -> bool:
    return any(c.get("text") or c.get("delta", {}).get("content") for c in told.get("choices", ()))


def _count(outcome: Outcome, usage: dict[str, Any] | None) -> None:
    if usage:
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.output_tokens = usage["completion_tokens"]
        outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
