"""Holdfast beside `transformers.generate` on the CPU: decode tokens per second, outputs compared.

    make bench                                       # or: python benchmarks/cpu_vs_transformers.py --help

One process, the same threads, the same float32 weights: random hybrids of at least 50 million parameters, one
shaped as Qwen3.5 (gated delta nets) and one as LFM2 (short convolutions). Prompts of 64 to 256 tokens, 64 tokens out,
greedy, nothing reused from run to run. Each figure is the median of several runs that alternate between the two.
Decode tokens per second: (64 - 1) x batch / (time of all 64 - time of the first).

  batch 1          one prompt
  batch 16         lengths uniform in 64..256; transformers pads on the left, as it must
  batch 16 equal   sixteen prompts of 160 tokens, nothing to pad
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from holdfast import LLM, SamplingParams

OUT = 64
SHARED = {
    "vocab_size": 16384,
    "hidden_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}


def qwen3_5() -> transformers.PreTrainedModel:
    config = transformers.Qwen3_5TextConfig(
        **SHARED,
        intermediate_size=1536,
        head_dim=64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=8,
        linear_num_value_heads=8,
    )
    return transformers.Qwen3_5ForCausalLM(config)


def lfm2() -> transformers.PreTrainedModel:
    config = transformers.Lfm2Config(
        **SHARED,
        intermediate_size=1536,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "conv", "conv", "full_attention"] * 3,
    )
    return transformers.Lfm2ForCausalLM(config)


FAMILIES = {"Qwen3.5": qwen3_5, "LFM2": lfm2}


def make_model(family: str, directory: Path) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(directory)
    return model


def peer_run(model: Any, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    begun = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - begun, out[:, longest:].tolist()


def own_run(llm: LLM, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    begun = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return time.perf_counter() - begun, [list(o.token_ids) for o in outputs]


def decode_rate(
    run: Callable[[int], tuple[float, list[list[int]]]], batch: int
) -> tuple[float, list[list[int]]]:
    whole, tokens = run(OUT)
    first, _ = run(1)
    return batch * (OUT - 1) / (whole - first), tokens


def compare(model: Any, llm: LLM, prompts: list[list[int]], reps: int) -> dict[str, Any]:
    peer, own, same = [], [], 0
    for _ in range(reps):
        rate, expected = decode_rate(lambda n: peer_run(model, prompts, n), len(prompts))
        peer.append(rate)
        rate, found = decode_rate(lambda n: own_run(llm, prompts, n), len(prompts))
        own.append(rate)
        same = sum(e == f for e, f in zip(expected, found, strict=True))
    return {
        "batch": len(prompts),
        "transformers": statistics.median(peer),
        "holdfast": statistics.median(own),
        "ratio": statistics.median(own) / statistics.median(peer),
        "range": [min(own) / max(peer), max(own) / min(peer)],
        "equal_outputs": same,
    }


def measure(family: str, reps: int) -> dict[str, Any]:
    lengths = torch.Generator().manual_seed(1)
    uniform = torch.randint(64, 257, (16,), generator=lengths).tolist()

    def prompts(sizes: list[int]) -> list[list[int]]:
        return [torch.randint(1, SHARED["vocab_size"], (n,), generator=lengths).tolist() for n in sizes]

    cases = {"batch 1": [160], "batch 16": uniform, "batch 16 equal": [160] * 16}
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(family, Path(directory))
        llm = LLM(
            directory,
            max_num_seqs=16,
            max_model_len=512,
            max_num_batched_tokens=4096,
            enable_prefix_caching=False,
        )
        results = {name: compare(model, llm, prompts(sizes), reps) for name, sizes in cases.items()}
    size = sum(p.numel() for p in model.parameters()) / 1e6
    title = f"{family}, {size:.0f}M parameters"
    print(f"\n{title:24} {'transformers':>12} {'holdfast':>10} {'ratio':>6}  {'range':>12}  equal outputs")
    for name, r in results.items():
        low, high = r["range"]
        print(
            f"{name:24} {r['transformers']:12.1f} {r['holdfast']:10.1f} {r['ratio']:6.2f}  "
            f"{low:5.2f} - {high:4.2f}  {r['equal_outputs']} of {r['batch']}"
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"warning: the machine is busy (load {load:.1f}); the figures will suffer")

    print(
        f"{platform.processor() or platform.machine()}, {args.threads} threads, torch {torch.__version__}, ",
        end="",
    )
    print(f"transformers {transformers.__version__}, float32")
    results = {family: measure(family, args.reps) for family in args.family}
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
