"""Holdfast on one GPU, at the real shapes of published models, random weights. Nothing is reused from run to run.

  python benchmarks/h200.py --json benchmarks/results/h200.json       # every part but vllm
  python benchmarks/h200.py --parts vllm,decode --vllm DIRECTORY --reps 5
  python benchmarks/h200.py --parts decode --models lfm2-1.2b --batches 1,16 --profile

start         from process start to the first token, no compiled kernels at hand
vllm          the peer's decode and prefill, as below; it lies unpacked in the directory that --vllm names
transformers  the same by `generate`, with one request and with sixteen
decode        steady decode and prefill, prompts of 512 tokens, 128 out, greedy; medians over --reps of the time from
              step to step while all requests decode, as of vllm and transformers. The first 32
              tokens of the timed runs are compared with an engine that records nothing. The floor is what the
              bytes of weights, state and KV take at the rate at which this GPU copies, or the operations at that of
              its products, if longer
experts       the same for a mixture of experts, of whose weights the floor counts those that are read
journal       a decode step of 256 requests with the journal, and with a state that is rewritten for every token
stamps        a decode step of 64 requests of Qwen3.5-4B with the sanitizer's stamps, and without
gaps          idle time of the device between steps at batch 64
load          prompts of 8,192 tokens arrive while 64 requests decode
context       one request with up to 126,976 tokens of context

A part that fails or takes longer than --limit is reported and left; what it found until then is kept. Kernels by
themselves are for `gpu/hottest.py`, which is made for Nsight Compute.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from gpu import context, decode, gaps, journal, load, models, peers, shapes, stamps, start

Row = dict[str, Any]
LINES: dict[str, Callable[[Row], str]] = {
    "start": start.line,
    "vllm": peers.vllm_line,
    "transformers": peers.transformers_line,
    "decode": decode.line,
    "experts": decode.line,
    "journal": journal.line,
    "stamps": stamps.line,
    "gaps": gaps.line,
    "load": load.line,
    "context": context.line,
}
PARTS = tuple(LINES)


def main() -> None:
    args = arguments()
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here: there is nothing to measure")
        return
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    if args.json and args.json.exists():
        found = json.loads(args.json.read_text()) | found
    rates = models.rates()
    models.give_back()
    found |= dict(zip(("copy", "matmul"), rates, strict=True))
    print(
        f"{found['device']}, torch {torch.__version__}; a copy moves {rates[0] / 1e12:.2f} TB/s, "
        f"a matrix product does {rates[1] / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    for part in args.parts:
        begun = time.perf_counter()
        found[part] = []
        try:
            with at_most(args.limit):
                for row in rows(part, args, rates):
                    if row not in found[part]:
                        found[part].append(row)
                    print(LINES[part](row), flush=True)
        except Exception:
            traceback.print_exc()
            print(f"{part}: broken off", flush=True)
        models.give_back()
        print(f"{part}: {time.perf_counter() - begun:.0f} s", flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=2) + "\n")
    print(
        "\n".join(
            ["", *(LINES[part](row) for part in args.parts for row in found[part]), *peers.table(found)]
        )
    )


def rows(part: str, args: argparse.Namespace, rates: tuple[float, float]) -> Iterator[Row]:
    how = {"checked": not args.unchecked, "profiled": args.profile}
    if part == "vllm":
        yield from peers.vllm(args.vllm, args.models, args.batches, args.reps, args.limit)
        return
    if part == "experts":
        yield from decode.measure("qwen3.5-35b-a3b", shapes.batches_of("", args.batches), 2, rates, **how)
        return
    if part == "journal":
        yield journal.measure(args.reps)
        return
    if part == "stamps":
        yield stamps.measure("qwen3.5-4b", max(args.reps, 5))
        return
    for number, name in enumerate(args.models):
        if part == "decode":
            yield from decode.measure(name, shapes.batches_of(name, args.batches), args.reps, rates, **how)
        elif part == "transformers":
            yield from peers.transformers(name, [n for n in args.batches if n <= 16], 1)
        elif part == "context":
            yield from context.measure(name)
        elif part == "start":
            yield start.measure(name, 64)
        elif part == "load":
            yield load.measure(name)
        else:
            yield gaps.measure(name, None if number else args.trace)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=lambda s: s.split(","))
    parser.add_argument("--models", default=",".join(shapes.DENSE), type=lambda s: s.split(","))
    parser.add_argument("--batches", default="1,16,64,256", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--limit", type=int, default=240, help="seconds that a part may take")
    parser.add_argument("--vllm", type=Path, help="where vLLM lies unpacked, with what it needs")
    parser.add_argument("--unchecked", action="store_true", help="do not compare with an eager engine")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a short run")
    parser.add_argument("--json", type=Path, help="write the figures here, part by part")
    parser.add_argument(
        "--trace", type=Path, help="keep a few steps of the first model's trace here, as .json.gz"
    )
    args = parser.parse_args()
    args.parts = args.parts or [part for part in PARTS if part != "vllm" or args.vllm]
    if unknown := sorted(set(args.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if "vllm" in args.parts and args.vllm is None:
        parser.error("part vllm needs --vllm: the directory that has it")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == "__main__":
    main()
