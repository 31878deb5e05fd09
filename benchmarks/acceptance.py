"""How many tokens a window gives: drafters of holdfast-small on prompts that it was not trained on, in the engine.

    python benchmarks/acceptance.py --json out.json

Greedy, speculation must not change an answer: that is checked. At temperature 0.8 it keeps the distribution, not the
tokens. One engine serves all depths of a drafter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast import LLM, SamplingParams
from holdfast.builtin import SMALL
from holdfast.request import RequestOutput
from holdfast.scheduler.depth import Depth
from speculation import DEPTHS, DRAFTERS, HELDOUT

SAMPLING = {
    "greedy": SamplingParams(max_tokens=64),
    "0.8": SamplingParams(max_tokens=64, temperature=0.8, seed=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--drafters", nargs="+", default=list(DRAFTERS), choices=DRAFTERS)
    parser.add_argument("--model", help="in the place of the one drafter that is asked for: its directory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers here as well, as they come")
    options = parser.parse_args()
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()[: options.prompts]
    asked = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    engine = {"device": options.device, "max_num_seqs": options.batch, "max_model_len": 512, "memory": "2GiB"}
    plain = LLM(SMALL, **engine).chat(asked, SAMPLING["greedy"], progress=False)
    print(f"{'drafter':10} {'depth':>5}  {'greedy':>6}  {'0.8':>6}   accepted at each place, greedy")
    rows: list[dict[str, Any]] = []
    for name in options.drafters:
        drafter = DRAFTERS[name] | ({"model": options.model} if options.model else {})
        adaptive = {"candidate_steps": list(DEPTHS)}
        drafts = {**drafter, "num_speculative_tokens": 3, "adaptive": adaptive}
        llm = LLM(SMALL, **engine, speculative_config=drafts)
        for depth in DEPTHS:
            llm._engine.scheduler._depth = Depth(depth)
            row: dict[str, Any] = {"drafter": name, "depth": depth}
            for sampling, params in SAMPLING.items():
                began = time.perf_counter()
                outputs = llm.chat(asked, params, progress=False)
                row |= _measured(sampling, outputs, depth, time.perf_counter() - began)
                if sampling == "greedy":
                    pairs = zip(plain, outputs, strict=True)
                    row["equal"] = sum(a.token_ids == b.token_ids for a, b in pairs)
            rows.append(row)
            places = " ".join(f"{share:.2f}" for share in row["accepted_at_greedy"])
            print(f"{name:10} {depth:5}  {row['greedy']:6.2f}  {row['0.8']:6.2f}   {places}", flush=True)
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps({"prompts": len(asked), "rows": rows}, indent=2) + "\n")
    least = min(row["equal"] for row in rows)
    print(f"greedy answers equal to those without drafts: at least {least} of {len(asked)}")


def _measured(name: str, outputs: Sequence[RequestOutput], depth: int, seconds: float) -> dict[str, Any]:
    found = [output.metrics.speculation for output in outputs]
    windows = sum(each.windows for each in found)
    at = [sum(sum(each.accepted_at[place : place + 1]) for each in found) for place in range(depth)]
    return {
        name: 1 + sum(at) / windows,
        f"accepted_at_{name}": [count / windows for count in at],
        f"seconds_{name}": seconds,
    }


if __name__ == "__main__":
    main()
