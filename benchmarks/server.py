"""What the server costs: streams of 32 clients beside the offline API, and the first token of an idle server.

    python benchmarks/server.py [--rounds 5] [--json FILE]

Both run the built-in model with one thread, turn by turn, so that a machine's moods meet both. The clients run on
the same machine. CPU seconds are given too: they depend less on what else it does. Every answer is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from holdfast import LLM, SamplingParams
from holdfast.bench.http import HttpClient
from holdfast.bench.workloads import poisson

CLIENTS, TOKENS, WORDS = 32, 128, 12
ENGINE: dict[str, Any] = {"max_num_seqs": CLIENTS, "max_model_len": 1024, "num_pages": 600}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    llm = LLM(None, **ENGINE)
    with server() as (url, pids):
        told = {
            "load_average": os.getloadavg()[0],
            "throughput": compare_throughput(llm, url, pids, args.rounds),
            "first_token": compare_first_token(llm, url, 20 * args.rounds),
        }
    print(render(told))
    if args.json:
        args.json.write_text(json.dumps(told, indent=2) + "\n")


@contextmanager
def server() -> Iterator[tuple[str, dict[str, int]]]:
    """Its address, and the processes of the server and of its engine."""
    options = [word for name, value in ENGINE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--log-format", "json", *options]
    process = subprocess.Popen(command, env=os.environ | ONE_THREAD, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address, engine = "", 0
        while not engine:
            line = process.stderr.readline()
            assert line, "the server ended"
            event = json.loads(line) if line.startswith("{") else {"event": ""}
            address = event.get("address", address)
            engine = event.get("engine_pid", 0)
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield address, {"server": process.pid, "engine": engine}
    finally:
        process.terminate()
        process.wait()
        drain.wait()


def compare_throughput(llm: LLM, url: str, pids: dict[str, int], rounds: int) -> dict[str, Any]:
    prompts = [shot.prompt for shot in poisson(CLIENTS, float("inf"), WORDS, TOKENS, seed=1)]
    params = SamplingParams(max_tokens=TOKENS, temperature=0.8, seed=7, ignore_eos=True)
    speeds: dict[str, list[float]] = {"offline": [], "server": []}
    cpu = dict.fromkeys(("offline", "server", "engine", "clients"), 0.0)
    differ = 0
    for number in range(rounds + 1):  # the first warms up
        llm.reset_prefix_cache()
        began, used = time.perf_counter(), time.process_time()
        expected = [output.text for output in llm.generate(prompts, params, progress=False)]
        offline, offline_cpu = time.perf_counter() - began, time.process_time() - used
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        used = time.process_time()
        texts, seconds = asyncio.run(streamed(url, prompts, params))
        if number:
            differ += sum(a != b for a, b in zip(texts, expected, strict=True))
            speeds["offline"].append(CLIENTS * TOKENS / offline)
            speeds["server"].append(CLIENTS * TOKENS / seconds)
            cpu["offline"] += offline_cpu / rounds
            cpu["clients"] += (time.process_time() - used) / rounds
            for name, pid in pids.items():
                cpu[name] += (cpu_seconds(pid) - before[name]) / rounds
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    best = {name: max(values) for name, values in speeds.items()}
    return {
        "tokens_per_second": medians,
        "best_tokens_per_second": best,
        "ratio": medians["server"] / medians["offline"],
        "best_ratio": best["server"] / best["offline"],
        "cpu_seconds": cpu,
        "answers_that_differ": differ,
    }


async def streamed(url: str, prompts: list[str], params: SamplingParams) -> tuple[list[str], float]:
    client = HttpClient(url)
    await client.json("POST", "/reset_prefix_cache")
    began = time.perf_counter()
    texts = await asyncio.gather(*(stream(client, prompt, params) for prompt in prompts))
    seconds = time.perf_counter() - began
    await client.close()
    return texts, seconds


async def stream(client: HttpClient, prompt: str, params: SamplingParams) -> str:
    # all that shapes a draw: what a client leaves out, the server takes from the model's generation_config.json
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "ignore_eos")
    body = {"prompt": prompt, "stream": True} | {name: getattr(params, name) for name in names}
    pieces = []
    async for data in client.events("/v1/completions", body):
        if data != b"[DONE]":
            pieces.append(json.loads(data)["choices"][0]["text"])
    return "".join(pieces)


def compare_first_token(llm: LLM, url: str, times: int) -> dict[str, Any]:
    """One request at a time, alternately: when does the caller have its first text?"""
    prompts = [shot.prompt for shot in poisson(times, float("inf"), WORDS, 1, seed=2)]
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    offline, served = [], []

    async def work() -> None:
        client = HttpClient(url)
        for prompt in prompts:
            began = time.perf_counter()
            next(output for output in llm.stream(prompt, params) if output.token_ids)
            offline.append(1e3 * (time.perf_counter() - began))
            began = time.perf_counter()
            body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
            events = client.events("/v1/completions", body)
            await anext(events)
            served.append(1e3 * (time.perf_counter() - began))
            async for _ in events:
                pass
        await client.close()

    asyncio.run(work())
    added = [b - a for a, b in zip(offline, served, strict=True)]
    return {
        "offline_ms": statistics.median(offline),
        "server_ms": statistics.median(served),
        "added_ms": statistics.median(added),
        "added_ms_p90": statistics.quantiles(added, n=10)[-1],
    }


def cpu_seconds(pid: int) -> float:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / TICK


def render(told: dict[str, Any]) -> str:
    speed, first = told["throughput"], told["first_token"]
    cpu = ", ".join(f"{name} {seconds:.2f}" for name, seconds in speed["cpu_seconds"].items())
    return "\n".join(
        [
            f"load average at the start          {told['load_average']:10.1f}",
            f"offline API, tokens/s              {speed['tokens_per_second']['offline']:10,.0f}",
            f"{CLIENTS} streaming clients, tokens/s    {speed['tokens_per_second']['server']:10,.0f}",
            f"  of the offline API's             {speed['ratio']:10.1%}",
            f"  best round of best round         {speed['best_ratio']:10.1%}",
            f"  answers that differ              {speed['answers_that_differ']:10}",
            f"  CPU seconds of a round           {cpu}",
            f"first token, offline API, ms       {first['offline_ms']:10.2f}",
            f"first token, idle server, ms       {first['server_ms']:10.2f}",
            f"  added, median and p90            {first['added_ms']:10.2f} {first['added_ms_p90']:.2f}",
        ]
    )


if __name__ == "__main__":
    main()
