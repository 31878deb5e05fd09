"""Holdfast on one GPU, at the real shapes of published models, random weights. Nothing is reused from run to run.

  python benchmarks/h200.py                                  # every part
  python benchmarks/h200.py --parts decode --models lfm2-1.2b --batches 1,16 --profile

  decode   steady decode and prefill, prompts of 512 tokens, 128 out, greedy; medians over --reps. The first 32
           tokens of the timed runs are compared with an engine that records nothing. The floor is what the bytes of
           weights, state and KV take at the rate at which this GPU copies, or the operations at that of its
           products, if longer
experts  the same for a mixture of experts, of whose weights the floor counts those that are read
load     prompts of 8,192 tokens arrive while 64 requests decode
context  one request with up to 126,976 tokens of context
journal  decode at batch 256 with the journal, and with a state that is rewritten for every token
gaps     idle time of the device between steps at batch 64
start    from process start to the first token, no compiled kernels at hand
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from gpu import context, decode, gaps, journal, load, models, start

PARTS = ("start", "decode", "experts", "journal", "gaps", "load", "context")
DENSE = ("lfm2-1.2b", "qwen3.5-4b")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), type=lambda s: s.split(","))
    parser.add_argument("--models", default=",".join(DENSE), type=lambda s: s.split(","))
    parser.add_argument("--batches", default="1,16,64,256", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--unchecked", action="store_true", help="do not compare with an eager engine")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a short run")
    parser.add_argument("--json", type=Path, help="write the figures here, part by part")
    parser.add_argument(
        "--trace", type=Path, help="keep a few steps of the first model's trace here, as .json.gz"
    )
    args = parser.parse_args()
    if unknown := sorted(set(args.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here: there is nothing to measure")
        return
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    if args.json and args.json.exists():
        found = json.loads(args.json.read_text()) | found
    copy, matmul = models.rates()
    found |= {"copy": copy, "matmul": matmul}
    print(
        f"{found['device']}, torch {torch.__version__}; a copy moves {copy / 1e12:.2f} TB/s, "
        f"a matrix product does {matmul / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    for part in args.parts:
        found[part] = measure(part, args, copy, matmul)
        if args.json:
            args.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(part: str, args: argparse.Namespace, copy: float, matmul: float) -> list[dict[str, Any]]:
    how = {"checked": not args.unchecked, "profiled": args.profile}
    if part == "decode":
        rows = []
        for name in args.models:
            batches = [n for n in args.batches if name != "qwen3.5-4b" or n <= 64]
            rows += decode.measure(name, batches, args.reps, copy, matmul, **how)
        print("\n".join(["", *map(decode.line, rows), ""]), flush=True)
        return rows
    if part == "experts":
        batches = [n for n in args.batches if n <= 64]
        return decode.measure("qwen3.5-35b-a3b", batches, args.reps, copy, matmul, **how)
    if part == "journal":
        return journal.measure("qwen3.5-4b", 256, args.reps)
    if part == "load":
        return [load.measure(name) for name in args.models]
    if part == "context":
        return [row for name in args.models for row in context.measure(name)]
    if part == "gaps":
        return [gaps.measure(name, args.trace if n == 0 else None) for n, name in enumerate(args.models)]
    return [start.measure(name, 64) for name in args.models]


if __name__ == "__main__":
    main()
