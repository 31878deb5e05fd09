"""What structured answers cost: the same prompts with and without a schema, step by step in turn, in one process.

    python benchmarks/structured.py --json out.json

Two engines of holdfast-small take each step right after one another, so that whatever else the machine does meets
both alike. All answers have the same length: the schema is of a list without an end, and free answers ignore theirs.
"CPU time" is what a step takes more; "own", what passes in making masks and applying them. The rest of the difference
is noise, and what other tokens make of memory. Then, for the schemas of the tests: how long it takes to compile one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from holdfast.builtin import SMALL
from holdfast.grammar import Grammars
from holdfast.params import SamplingParams, Structured
from holdfast.service import Service
from turns import OwnTime, in_turn, machine, median_and_range

LIMIT = 0.10
"""Of a batch of 16 in which every answer has a schema."""
BATCH, ANSWER = 16, 96
SCHEMAS = Path(__file__).parents[1] / "tests" / "structured" / "schemas.json"
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"pattern": "^[0-9]{5}$"}},
        },
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "address", "tags"],
    "additionalProperties": False,
}
FREE = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
HELD = SamplingParams(
    max_tokens=ANSWER,
    structured=Structured(json={"type": "array", "items": ITEM, "minItems": 1000}),
)


PROMPTS = [f"List {number + 3} people as JSON, please." for number in range(BATCH)]


def measure(free: Service, held: Service, spent: OwnTime, constrained: int, reps: int) -> dict[str, Any]:
    stats = held.engine.runner.constraints.stats
    more, own, each = [], [], []
    params = [[FREE] * BATCH, [HELD] * constrained + [FREE] * (BATCH - constrained)]
    for rep in range(reps + 1):
        spent.cpu, masks = 0.0, stats.masks
        (a, b), answers = in_turn([free, held], [list(zip(PROMPTS, p, strict=True)) for p in params])
        assert all(len(answer) == ANSWER for side in answers for answer in side), "not of the same length"
        if rep:  # the first warms up
            more.append(b.cpu / a.cpu - 1)
            own.append(spent.cpu / (b.cpu - spent.cpu))
            each.append(spent.cpu / (stats.masks - masks) * 1e6)
    return {
        **median_and_range("cpu", more),
        **median_and_range("own", own),
        **median_and_range("microseconds_per_mask", each),
    }


def compile_times() -> list[float]:
    """Milliseconds, the tokenizer's own not counted."""
    grammars = Grammars(SMALL, 4096)
    grammars.check(Structured(regex="a"))
    times = []
    for schema in json.loads(SCHEMAS.read_text()).values():
        begun = time.process_time()
        grammars.check(Structured(json=schema))
        times.append((time.process_time() - begun) * 1e3)
    return sorted(times)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    free, held = (Service(SMALL, dict(max_num_seqs=BATCH, max_model_len=512)) for _ in range(2))
    runner = held.engine.runner
    spent = OwnTime(
        (runner.constraints, "start"), (runner.constraints, "masks"), (runner.sampler._ops, "permit")
    )
    results = {
        f"{count} of {BATCH} with a schema": measure(free, held, spent, count, args.reps)
        for count in (BATCH, 4)
    }
    compiled = compile_times()
    print(f"{machine(args.threads)}; holdfast-small, {BATCH} answers of {ANSWER} tokens")
    print(f"{'':22} {'CPU time':>9} {'range':>18} {'own':>7} {'range':>16} {'a mask':>7}")
    for name, r in results.items():
        print(
            f"{name:22} {r['cpu']:+9.1%} {r['cpu_range'][0]:+8.1%} to {r['cpu_range'][1]:+6.1%} "
            f"{r['own']:7.1%} {r['own_range'][0]:6.1%} to {r['own_range'][1]:5.1%} "
            f"{r['microseconds_per_mask']:4.0f} us"
        )
    half, most = compiled[len(compiled) // 2], compiled[-1]
    print(f"compiling one of {len(compiled)} schemas: median {half:.1f} ms, at most {most:.1f} ms")
    if args.json:
        args.json.write_text(json.dumps(results | {"compile_ms": [half, most]}, indent=2))
    whole = next(iter(results.values()))
    if whole["own"] > LIMIT:
        print(f"more than {LIMIT:.0%}")
    return int(whole["own"] > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
