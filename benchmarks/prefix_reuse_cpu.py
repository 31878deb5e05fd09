"""Prefix reuse on the real engine, on the CPU: what it gives a conversation, and what it takes from strangers.

    python benchmarks/prefix_reuse_cpu.py

A hybrid with random weights, float32, one thread. Times are the process's CPU time, so that other work on the machine
does not count; those with and without prefix caching take turns, and each figure is a median.

  fifth turn   a document, then five questions and answers: time to the first token of the fifth answer, resumed
               and cold. Both must give the same tokens.
  strangers    prompts that have nothing in common: all their tokens, with and without prefix caching
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from holdfast import LLM, SamplingParams
from turns import in_turn, median_and_range

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 6,
    "max_position_embeddings": 4096,
}


def text(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(CONFIG["vocab_size"]) for _ in range(length)]


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)


def cpu_seconds(llm: LLM, prompts: list[list[int]], count: int) -> tuple[float, list[tuple[int, ...]]]:
    began = time.process_time()
    outputs = llm.generate(prompts, greedy(count))
    return time.process_time() - began, [output.token_ids for output in outputs]


def fifth_turn(resuming: LLM, cold: LLM, repeats: int) -> dict[str, float]:
    """The time of one token is the time to the first one."""
    times: dict[str, list[float]] = {"resumed": [], "cold": []}
    for repeat in range(repeats):
        talk = text(repeat, 1000)
        for turn in range(4):
            talk += text(100 * repeat + turn, 60)
            talk += resuming.generate([talk], greedy(100))[0].token_ids
        talk += text(100 * repeat + 9, 60)
        resumed, one = cpu_seconds(resuming, [talk], 1)
        first, other = cpu_seconds(cold, [talk], 1)
        assert one == other, "a hit changed a token"
        times["resumed"].append(resumed)
        times["cold"].append(first)
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {**medians, "prompt": len(talk), "ratio": medians["cold"] / medians["resumed"]}


def strangers(resuming: LLM, cold: LLM, repeats: int) -> dict[str, Any]:
    """Step by step in turn: whatever else the machine does meets both alike."""
    services, times, overheads = (resuming._service, cold._service), [], []
    for repeat in range(repeats + 1):
        asks = [(text(7000 + 100 * repeat + n, 100 + 7 * n), greedy(80)) for n in range(16)]
        clocks, (one, other) = in_turn(services, [asks] * 2)
        assert one == other, "prefix caching changed a token"
        for clock, service in zip(clocks, services, strict=True):
            clock.time(service.engine.settle)  # ended requests may yet leave a checkpoint
        if repeat:  # the first one warms up
            times.append([clock.cpu for clock in clocks])
            overheads.append(clocks[0].cpu / clocks[1].cpu - 1)
    on, off = (statistics.median(each) for each in zip(*times, strict=True))
    return {"on": on, "off": off, **median_and_range("overhead", overheads)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(CONFIG))
        sizes: dict[str, Any] = dict(load_format="dummy", max_num_seqs=16, max_model_len=2048, num_pages=1024)
        resuming, cold = (LLM(name, **sizes, enable_prefix_caching=caching) for caching in (True, False))
    turn = fifth_turn(resuming, cold, options.repeats)
    print(
        f"fifth turn, {turn['prompt']:,.0f} tokens: first token in {turn['resumed'] * 1e3:,.0f} ms of CPU resumed, "
        f"{turn['cold'] * 1e3:,.0f} ms cold: {turn['ratio']:.1f}x"
    )
    alone = strangers(resuming, cold, options.repeats)
    print(
        f"strangers: {alone['on']:.2f} s of CPU with prefix caching, {alone['off']:.2f} s without: "
        f"{alone['overhead']:+.1%} ({alone['overhead_range'][0]:+.1%} to {alone['overhead_range'][1]:+.1%})"
    )
    if options.json:
        options.json.write_text(json.dumps({"fifth turn": turn, "strangers": alone}, indent=1))


if __name__ == "__main__":
    main()
