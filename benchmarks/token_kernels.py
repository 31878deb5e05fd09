"""Attention, experts and sampling on one GPU: how long a layer's kernels take, and how long they must.

    python benchmarks/token_kernels.py [windows] [runs] [experts] [sampling] [--sweep] [--json FILE]

bfloat16, medians under graph replay. Inputs rotate through more memory than the L2 holds. The floor is the larger of
bytes / 4.26 TB/s and products / 790 TFLOP/s, which an H200 reaches in a copy and in a matrix product. --sweep tries
other tiles and names the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from holdfast.ops.attention import triton as attention
from holdfast.ops.moe import triton as moe
from holdfast.ops.moe.reference import Routing
from holdfast.ops.places import KVState
from holdfast.ops.sampling import triton as sampling
from holdfast.ops.sampling.reference import SamplingRows
from holdfast.ops.step import StateStep

ROTATE_BYTES = 256 << 20
BYTES_PER_US, FLOPS_PER_US = 4.26e6, 790e6
PAGE, WIDEST = 64, 1 << 15
"""Tokens of a page, and those that a row of the page table has room for: what a graph is recorded for."""

Way = Callable[[int], object]
"""Does the work once, on the inputs of this number."""


@dataclass(frozen=True)
class Case:
    name: str
    way: Way
    copies: int
    nbytes: float
    flops: float = 0.0

    @property
    def floor(self) -> float:
        return max(self.nbytes / BYTES_PER_US, self.flops / FLOPS_PER_US)


def microseconds(case: Case, budget: float = 0.1) -> float:
    """Of one call, the median over replays of a graph that has every copy once."""
    for number in range(case.copies):
        case.way(number)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(case.copies):
            case.way(number)
    timed, end = [], time.perf_counter() + budget
    while len(timed) < 5 or time.perf_counter() < end:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        timed.append(1000 * start.elapsed_time(stop) / case.copies)
    return statistics.median(timed)


def copies_for(nbytes: float) -> int:
    return max(1, min(32, -(-ROTATE_BYTES // int(nbytes))))


def normal(*shape: int, device: str) -> Tensor:
    return torch.randn(*shape, device=device).bfloat16()


# --- attention ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heads:
    name: str
    queries: int
    keys: int
    dim: int
    value_dim: int | None = None


LFM2, QWEN, LATENT = (
    Heads("lfm2", 32, 8, 64),
    Heads("qwen3.5-4b", 16, 4, 256),
    Heads("latent", 32, 1, 576, 512),
)


def step_of(rows: Sequence[int], count: int, position: int, *, windows: bool, device: str) -> StateStep:
    def ids(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=device)

    zero, lanes = ids([0] * len(rows)), len(rows)
    return StateStep(
        rows=ids(rows),
        counts=ids([count] * lanes),
        offsets=ids([count * lane for lane in range(lanes + 1)]),
        position=ids([position] * lanes),
        base=zero,
        read_slot=zero,
        end_base=zero,
        write_slot=zero,
        num_windows=lanes if windows else 0,
        longest_window=count if windows else 0,
        grid=16,
        window_tokens=lanes * count if windows else 0,
    )


def attention_case(
    heads: Heads, batch: int, count: int, position: int, *, windows: bool, device: str = "cuda"
) -> Case:
    """`batch` lanes of `count` tokens after `position` others, in scattered pages"""
    length = position + count
    width = 0 if heads.value_dim else heads.dim
    per_token = heads.keys * (heads.dim + width) * 2
    nbytes = batch * length * per_token
    copies = copies_for(nbytes)
    pages = -(-length // PAGE)
    table = torch.zeros(copies * batch + 1, WIDEST // PAGE, dtype=torch.int32, device=device)
    table[1:, :pages] = torch.randperm(copies * batch * pages, device=device).view(-1, pages).int() + 1
    stored = (copies * batch * pages + 1, PAGE, heads.keys)
    pool = KVState(*(normal(*stored, size, device=device) for size in (heads.dim, width)))
    queries = normal(batch * count, heads.queries, heads.dim, device=device)
    steps = [
        step_of(range(1 + c * batch, 1 + (c + 1) * batch), count, position, windows=windows, device=device)
        for c in range(copies)
    ]

    def way(number: int) -> Tensor:
        return attention.paged_attention(
            queries, pool, table, steps[number], heads.dim**-0.5, value_dim=heads.value_dim
        )

    seen = batch * count * (position + (count + 1) / 2)
    flops = 2 * seen * heads.queries * (heads.dim + (heads.value_dim or heads.dim))
    kind = "window" if windows else "run"
    return Case(f"{heads.name} {kind} of {count} after {position}, batch {batch}", way, copies, nbytes, flops)


def window_cases() -> Iterator[tuple[Case, int]]:
    for heads, batch in itertools.product((LFM2, QWEN), (1, 16, 64, 256)):
        yield attention_case(heads, batch, 1, 575, windows=True), heads.dim
    for heads in (LFM2, QWEN, LATENT):
        yield attention_case(heads, 32, 1, 4095, windows=True), heads.value_dim or heads.dim
        yield attention_case(heads, 32, 4, 4092, windows=True), heads.value_dim or heads.dim
    yield attention_case(QWEN, 1, 1, WIDEST - 1, windows=True), QWEN.dim


def run_cases() -> Iterator[tuple[Case, int]]:
    for heads, (batch, count, position) in itertools.product(
        (LFM2, QWEN), ((16, 512, 0), (1, 8192, 0), (1, 512, 8192))
    ):
        yield attention_case(heads, batch, count, position, windows=False), heads.dim
    yield attention_case(LATENT, 4, 512, 0, windows=False), 512


def window_tiles(found: attention.Tiles) -> Iterator[attention.Tiles]:
    for context, warps, stages in itertools.product((32, 64, 128), (4, 8), (3, 5)):
        yield attention.Tiles(found.rows, context, warps, stages)


def run_tiles(found: attention.Tiles) -> Iterator[attention.Tiles]:
    for rows, context, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 5)):
        yield attention.Tiles(rows, context, warps, stages)


# --- experts -----------------------------------------------------------------------------------------------


def expert_cases(device: str = "cuda") -> Iterator[tuple[Case, float]]:
    """Qwen3.5-35B-A3B's: 256 experts of 2048 x 512, of which a token chooses 8"""
    count, chosen, width, inner = 256, 8, 2048, 512
    up, down = (normal(count, *s, device=device) / 40 for s in ((2 * inner, width), (width, inner)))
    routing = Routing(count, chosen)
    for tokens in (1, 4, 16, 64, 256, 2048, 8192):
        copies = 16 if tokens <= 64 else 2
        x = normal(copies, tokens, width, device=device)
        logits = normal(copies, tokens, count, device=device)

        def way(number: int, x: Tensor = x, logits: Tensor = logits) -> Tensor:
            experts, weights = moe.route(logits[number], None, routing)
            return moe.experts(x[number], experts, weights, up, down, gated=True)

        active = count * (1 - (1 - chosen / count) ** tokens)  # expected
        flops = 2.0 * tokens * chosen * 3 * width * inner
        yield (
            Case(f"experts, {tokens} tokens", way, copies, active * 3 * width * inner * 2, flops),
            tokens * chosen / count,
        )


def expert_tiles(rows: int) -> Iterator[moe.Tiles]:
    for outputs, inputs, warps, stages in itertools.product((16, 32, 64, 128), (64, 128), (4, 8), (3, 5)):
        shared = stages * (rows + 2 * outputs) * inputs * 2
        if 2 <= rows * outputs // (32 * warps) <= 64 and shared <= 200 << 10:
            yield moe.Tiles(rows, outputs, inputs, warps, stages)


# --- sampling ----------------------------------------------------------------------------------------------


def sampling_cases(device: str = "cuda") -> Iterator[Case]:
    kinds: dict[str, dict[str, Any]] = {
        "greedy": dict(draws=False),
        "draws": dict(truncates=False),
        "top_p": dict(top_p=0.9),
        "top_k": dict(top_k=50),
    }
    for vocab, rows, (name, options) in itertools.product((65_536, 248_320), (1, 64, 256), kinds.items()):
        copies = copies_for(2 * rows * vocab)
        logits = 3 * normal(copies, rows, vocab, device=device)
        like = torch.zeros(rows, device=device)
        given = SamplingRows(
            temperature=like + 1.0,
            top_k=like.long() + options.get("top_k", 0),
            top_p=like + options.get("top_p", 1.0),
            min_p=like,
            seed=torch.arange(rows, device=device),
            position=torch.arange(rows, device=device),
            draws=options.get("draws", True),
            truncates=options.get("truncates", True),
        )

        def way(number: int, logits: Tensor = logits, given: SamplingRows = given) -> Tensor:
            return sampling.sample(logits[number], given)

        yield Case(f"{name}, {rows} of {vocab}", way, copies, logits[0].nbytes)


# --- all of it ---------------------------------------------------------------------------------------------


def report(case: Case, rows: list[dict[str, Any]]) -> None:
    took = microseconds(case)
    rows.append({"case": case.name, "us": took, "floor_us": case.floor, "of_floor": case.floor / took})
    print(f"{case.name:44s} {took:9.1f} us   floor {case.floor:9.1f}   {case.floor / took:5.0%}", flush=True)


def sweep(case: Case, tiles: Iterator[Any], use: Callable[[Any], None]) -> None:
    """The three best; those that do not fit are passed over."""
    timed: list[tuple[float, Any]] = []
    for tile in tiles:
        use(tile)
        try:
            timed.append((microseconds(case, budget=0.01), tile))
        except (triton.runtime.errors.OutOfResources, triton.CompilationError):
            continue
    for took, tile in sorted(timed, key=lambda pair: pair[0])[:3]:
        print(f"    {took:9.1f} us  {tile}", flush=True)


def measure(part: str, rows: list[dict[str, Any]], *, sweeps: bool) -> None:
    if part in ("windows", "runs"):
        table = attention.WINDOW_TILES if part == "windows" else attention.RUN_TILES
        candidates = window_tiles if part == "windows" else run_tiles
        for case, dim in window_cases() if part == "windows" else run_cases():
            report(case, rows)
            if sweeps:
                chosen = table[dim]
                sweep(case, candidates(chosen), lambda tile, dim=dim: table.update({dim: tile}))
                table[dim] = chosen
    elif part == "experts":
        chosen_for = moe.tiles_for
        for case, average in expert_cases():
            report(case, rows)
            if sweeps:
                tiles = expert_tiles(chosen_for(average).rows)
                sweep(case, tiles, lambda tile: setattr(moe, "tiles_for", lambda rows: tile))
                moe.tiles_for = chosen_for
    else:
        for case in sampling_cases():
            report(case, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("windows", "runs", "experts", "sampling")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all if none is named")
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here, and these kernels are measured on nothing else.")
        return
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for part in args.parts or parts:
            measure(part, rows, sweeps=args.sweep)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
