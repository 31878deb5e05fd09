"""What a drafter costs that is not asked: an engine at depth 0 beside one that has none.

    python benchmarks/depth_zero.py --model qwen3.5-4b   # random weights, its own MTP head; a minute on an H200

Tokens a second while all requests of a batch run, medians over --reps, in each of which both have a turn.
"""

from __future__ import annotations

import argparse
import statistics

from gpu.models import options
from gpu.shapes import MODELS, folder, prompts
from holdfast import LLM, SamplingParams
from holdfast.scheduler.depth import Depth
from speculation import _while_all_run

DRAFTS = {"method": "mtp", "num_speculative_tokens": 1, "adaptive": {"candidate_steps": [0, 1]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="qwen3.5-4b", choices=[name for name in MODELS if "qwen" in name])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--out", type=int, default=300, help="tokens of every answer")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--memory", default="40GiB", help="of each engine")
    asked = parser.parse_args()
    with folder(MODELS[asked.model]) as directory:
        built = options(max(asked.batches), max_model_len=1024, memory=asked.memory)
        engines = {"none": LLM(directory, **built), "0": LLM(directory, **built, speculative_config=DRAFTS)}
        engines["0"]._engine.scheduler._depth = Depth(0)
        for batch in asked.batches:
            found: dict[str, list[float]] = {kind: [] for kind in engines}
            for rep in range(asked.reps + 1):  # the first is not counted
                for kind, llm in engines.items():
                    rate = _rate(llm, prompts(asked.model, batch, 64, rep), asked.out)
                    found[kind] += [rate] if rep else []
            none, zero = (statistics.median(found[kind]) for kind in ("none", "0"))
            print(
                f"{asked.model}, {batch} requests: none {none:,.1f}, depth 0 {zero:,.1f}: {zero / none:.2%}"
            )


def _rate(llm: LLM, given: list[list[int]], out: int) -> float:
    with _while_all_run(llm._engine, len(given)) as lap:
        llm.generate(given, SamplingParams(max_tokens=out, ignore_eos=True), progress=False)
    return lap.tokens / lap.seconds


if __name__ == "__main__":
    main()
