"""Many clients at once: the answers of the offline API, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, SamplingParams
from holdfast.bench.http import HttpClient

from .running import KEY, Running, pools_are_whole, until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="asks the kernel about processes, as Linux tells it"
)

VARIANTS = 16
"""Different requests. A run sends each of them many times."""


def asked(number: int) -> tuple[list[int], SamplingParams]:
    prompt = [3 + (number * 7 + place * place) % 200 for place in range(5 + 13 * number % 90)]
    params = SamplingParams(
        max_tokens=6 + number % 11,
        temperature=0.0 if number % 3 == 0 else 0.9,
        top_p=0.9 if number % 4 == 0 else 1.0,
        seed=number,
        ignore_eos=number % 2 == 0,
    )
    return prompt, params


def body_of(number: int) -> dict[str, Any]:
    prompt, params = asked(number)
    names = ("max_tokens", "temperature", "top_p", "seed", "ignore_eos")
    return {"prompt": prompt, "stream": True, "return_token_ids": True} | {
        n: getattr(params, n) for n in names
    }


async def tokens_of(client: HttpClient, number: int) -> tuple[tuple[int, ...], str]:
    tokens: list[int] = []
    text = ""
    async for data in client.events("/v1/completions", body_of(number)):
        if data != b"[DONE]":
            for choice in json.loads(data)["choices"]:
                tokens += choice["token_ids"]
                text += choice["text"]
    return tuple(tokens), text


async def stream_for(server: Running, clients: int, rounds: int, seconds: float) -> list[tuple[int, Any]]:
    """Each client sends one request after the other, so many or for so long, whichever is more."""
    client, deadline = HttpClient(server.url, KEY), time.monotonic() + seconds
    got: list[tuple[int, Any]] = []

    async def work(first: int) -> None:
        turn = 0
        while turn < rounds or time.monotonic() < deadline:
            number = (first + 5 * turn) % VARIANTS
            got.append((number, await tokens_of(client, number)))
            turn += 1

    await asyncio.gather(*(work(first) for first in range(clients)))
    await client.close()
    return got


def check_streams(server: Running, offline: LLM, clients: int, rounds: int, seconds: float) -> None:
    outputs = [offline.generate([asked(n)[0]], asked(n)[1])[0] for n in range(VARIANTS)]
    expected = [(output.token_ids, output.text) for output in outputs]
    got = asyncio.run(stream_for(server, clients, rounds, seconds))
    assert len(got) >= clients * rounds
    wrong = [number for number, answer in got if answer != expected[number]]
    assert not wrong, f"{len(wrong)} of {len(got)} answers differ from the offline API's"


def belongings(server: Running) -> dict[str, int]:
    """What a leak would show in. Memory is in MiB."""
    found = {"tasks": int(server.metrics()["asyncio_tasks"])}
    for name, pid in (("server", server.process.pid), ("engine", server.engine_pid())):
        found[f"{name} descriptors"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        found[f"{name} memory"] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20
    return found


def check_nothing_is_left(server: Running, before: dict[str, int]) -> None:
    until(lambda: pools_are_whole(server.metrics()))
    until(lambda: not more_than(before, server), seconds=10)  # connections close a moment later
    server.ask("POST", "/reset_prefix_cache")
    metrics = server.metrics()
    assert metrics["pages_free"] == metrics["pages"] and metrics["slots_free"] == metrics["slots"]
    assert metrics["rows_free"] == 16


def more_than(before: dict[str, int], server: Running) -> list[str]:
    after = belongings(server)
    return [name for name in after if after[name] > before[name] + (24 if "memory" in name else 0)]


async def disconnect(server: Running, times: int, at_once: int) -> None:
    """In the middle of a stream: at its first byte, or some bytes later."""
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            body = {"prompt": [3 + number % 200] * (1 + number % 150), "max_tokens": 300, "ignore_eos": True}
            content = json.dumps(body | {"stream": True}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
            writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            if number % 3:
                await reader.read(1 if number % 3 == 1 else 2000)
            writer.transport.abort() if number % 2 else writer.close()

    await asyncio.gather(*(one(number) for number in range(times)))


def test_streams_equal_the_offline_api(server: Running, offline: LLM) -> None:
    before = belongings(server)
    check_streams(server, offline, clients=32, rounds=1, seconds=0)
    check_nothing_is_left(server, before)


def test_disconnects_leave_the_pools_as_they_were(server: Running) -> None:
    asyncio.run(disconnect(server, times=24, at_once=24))  # what is made once is made now
    before = belongings(server)
    asyncio.run(disconnect(server, times=60, at_once=30))
    check_nothing_is_left(server, before)


@pytest.mark.slow
def test_sixty_four_streams_for_a_minute(server: Running, offline: LLM) -> None:
    asyncio.run(stream_for(server, clients=64, rounds=1, seconds=0))
    before = belongings(server)
    check_streams(server, offline, clients=64, rounds=1, seconds=60)
    check_nothing_is_left(server, before)


@pytest.mark.slow
def test_a_thousand_disconnects(server: Running) -> None:
    asyncio.run(disconnect(server, times=100, at_once=50))
    before = belongings(server)
    asyncio.run(disconnect(server, times=1000, at_once=50))
    check_nothing_is_left(server, before)
