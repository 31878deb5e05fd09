"""How many tokens a window gives: drafters of holdfast-small on prompts that it was not trained on, in the engine.

    python benchmarks/acceptance.py --json out.json

Greedy, speculation must not change an answer: that is checked. At temperature 0.8 it keeps the distribution, not the
tokens. EAGLE-3 and DFlash are measured by `training/drafters.py` until the engine has drafters for them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from holdfast import LLM, SamplingParams
from holdfast.builtin import SMALL

HELDOUT = Path(__file__).parent / "data" / "small_talk_heldout.jsonl"
METHODS = ("mtp", "ngram")
DEPTHS = (1, 3, 5, 7)
SAMPLING = {
    "greedy": SamplingParams(max_tokens=64),
    "0.8": SamplingParams(max_tokens=64, temperature=0.8, seed=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=SMALL)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    options = parser.parse_args()
    lines = HELDOUT.read_text(encoding="utf-8").splitlines()[: options.prompts]
    asked = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines]
    engine = {"device": options.device, "max_num_seqs": options.batch, "max_model_len": 512}
    plain = LLM(options.model, **engine).chat(asked, SAMPLING["greedy"])
    print(f"{'method':8} {'depth':>5}  {'greedy':>6}  {'0.8':>6}   accepted at each place, greedy")
    rows = []
    for method in options.methods:
        for depth in DEPTHS:
            row: dict[str, Any] = {"method": method, "depth": depth}
            for name, params in SAMPLING.items():
                drafts = {"method": method, "num_speculative_tokens": depth}
                llm = LLM(options.model, **engine, speculative_config=drafts)
                began = time.perf_counter()
                outputs = llm.chat(asked, params)
                row |= _measured(name, llm, time.perf_counter() - began)
                if name == "greedy":
                    row["equal"] = sum(
                        a.token_ids == b.token_ids for a, b in zip(plain, outputs, strict=True)
                    )
            rows.append(row)
            places = " ".join(f"{share:.2f}" for share in row["accepted_at_greedy"])
            print(f"{method:8} {depth:5}  {row['greedy']:6.2f}  {row['0.8']:6.2f}   {places}", flush=True)
    print(
        f"greedy answers equal to those without drafts: at least {min(it['equal'] for it in rows)} of {len(asked)}"
    )
    if options.json:
        options.json.write_text(json.dumps({"prompts": len(asked), "rows": rows}, indent=2) + "\n")


def _measured(name: str, llm: LLM, seconds: float) -> dict[str, Any]:
    found = llm.speculation_stats()
    return {
        name: found.accept_length,
        f"accepted_at_{name}": [count / found.windows for count in found.accepted_at],
        f"seconds_{name}": seconds,
    }


if __name__ == "__main__":
    main()
