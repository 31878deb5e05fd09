"""What the sanitizer costs: the same requests with and without it, step by step in turn, in one process.

    python benchmarks/sanitizer.py --json out.json

Two engines with the same weights take each step right after one another, so that whatever else the machine does
meets both alike. CPU time and wall time of each are added up; the answers must be equal. On a busy machine the
difference of two such sums is mostly noise; "own CPU time", spent in the sanitizer itself, is not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from holdfast.request import SamplingParams
from holdfast.service import Service
from turns import OwnTime, in_turn, machine, median_and_range

LIMIT = 0.03
"""Of `stamps`, against `off`."""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
    "linear_conv_kernel_dim": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "max_position_embeddings": 1024,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
}
CASES = {"batch 1": [160], "batch 16": [64 + 12 * i for i in range(16)]}
ANSWER = 64


def measure(off: Service, guarded: Service, spent: OwnTime, lengths: list[int], reps: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    cpu, wall, own, equal = [], [], [], True
    for rep in range(reps + 1):
        spent.cpu = 0.0
        prompts = [torch.randint(CONFIG["vocab_size"], (n,), generator=generator).tolist() for n in lengths]
        (a, b), (expected, found) = in_turn([off, guarded], [[(p, params) for p in prompts]] * 2)
        equal &= expected == found
        if rep:  # the first warms up
            cpu.append(b.cpu / a.cpu - 1)
            wall.append(b.wall / a.wall - 1)
            own.append(spent.cpu / (b.cpu - spent.cpu))
    return {
        **median_and_range("cpu", cpu),
        **median_and_range("wall", wall),
        **median_and_range("own", own),
        "equal_outputs": equal,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--mode", default="stamps", choices=("stamps", "full"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    options = dict(load_format="dummy", max_num_seqs=16, max_model_len=512, max_num_batched_tokens=4096)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(CONFIG))
        off, guarded = (Service(directory, {**options, "sanitizer": mode}) for mode in ("off", args.mode))
        runner = guarded.engine.runner
        spent = OwnTime((runner, "_settle"), (runner, "_inspect"), (runner.sanitizer, "apply"))
        size = sum(p.numel() for p in off.engine.runner.model.parameters()) / 1e6
        results = {name: measure(off, guarded, spent, lengths, args.reps) for name, lengths in CASES.items()}

    print(f"{machine(args.threads)}; {size:.0f}M parameters, float32")
    columns = " ".join(f"{name:>9} {'range':>18}" for name in ("CPU time", "wall", "own CPU"))
    print(f"{args.mode + ' against off':20} {columns}  equal outputs")
    for name, r in results.items():
        figures = " ".join(
            f"{r[clock]:+9.2%} {r[clock + '_range'][0]:+8.2%} to {r[clock + '_range'][1]:+6.2%}"
            for clock in ("cpu", "wall", "own")
        )
        print(f"{name:20} {figures}  {'yes' if r['equal_outputs'] else 'NO'}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))
    for name, r in results.items():
        if args.mode == "stamps" and r["own"] > LIMIT:
            print(f"{name}: more than {LIMIT:.0%}")
    return int(not all(r["equal_outputs"] for r in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
