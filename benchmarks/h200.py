"""Holdfast on one GPU: steady decode, prefill and start, at the real shapes of published models, random weights.

    python benchmarks/h200.py                                  # both models, every batch
    python benchmarks/h200.py --models lfm2-1.2b --batches 1,16 --profile

For each batch: fresh random prompts, greedy, nothing reused. A decode step is (T(out) - T(out / 2)) / (out / 2), both
runs sharing the same prefill; prefill is the time of a run with one token out. Medians over --reps. The first 32
tokens of the timed runs are compared with an engine that records nothing. The floor is what the bytes of weights,
state and KV take at the rate at which this GPU copies, or the operations at that of its products, if that is longer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

BEGUN = time.perf_counter()

import torch  # noqa: E402  the start is measured from here

from holdfast import LLM, SamplingParams  # noqa: E402

LFM2_1_2B: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "block_use_swiglu": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "eos_token_id": 7,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "tie_embedding": True,
    "vocab_size": 65536,
}
QWEN35_4B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 2560,
    "intermediate_size": 9216,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "tie_word_embeddings": True,
    "eos_token_id": 248044,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
}
MODELS = {"lfm2-1.2b": LFM2_1_2B, "qwen3.5-4b": QWEN35_4B}
CHECKED = 32


def make_llm(directory: str, args: argparse.Namespace, *, eager: bool) -> LLM:
    return LLM(
        directory,
        device="cuda",
        dtype="bfloat16",
        load_format="dummy",
        max_num_seqs=max(args.batches),
        max_model_len=args.max_len,
        max_num_batched_tokens=args.batched_tokens,
        enable_prefix_caching=False,
        memory=args.memory,
        eager=eager,
    )


def prompts(batch: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(100, min(vocab, 60_000), (batch, length), generator=draws).tolist()


def timed(llm: LLM, given: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
    begun = time.perf_counter()
    outputs = llm.generate(given, SamplingParams(max_tokens=tokens, ignore_eos=True), progress=False)
    return time.perf_counter() - begun, [list(o.token_ids) for o in outputs]


def rates() -> tuple[float, float]:
    """Bytes a second that a copy moves, operations a second that a bf16 matrix product does."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def seconds(work: Any) -> float:
        work()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e4

    return 2 * a.numel() / seconds(lambda: b.copy_(a)), 2 * 8192**3 / seconds(lambda: x @ x)


def floor(llm: LLM, batch: int, context: int, copy: float, matmul: float) -> float:
    """Seconds of a decode step, at the least: weights once; state read, and written by folds; KV read."""
    runner = llm._service.engine.runner
    weights = sum(p.numel() * p.element_size() for p in runner.model.parameters())
    state = runner.state.slot_bytes / (llm.capacity.limits.num_slots + 1) if runner.state.layers else 0
    kv = runner.kv.nbytes / (llm.capacity.limits.num_pages + 1) / llm.capacity.limits.page_size
    moved = weights + batch * (state * (1 + 1 / llm.capacity.limits.fold_every) + kv * context)
    operations = 2 * batch * sum(p.numel() for p in runner.model.parameters())
    return max(moved / copy, operations / matmul)


def measure(name: str, args: argparse.Namespace, copy: float, matmul: float) -> list[dict[str, Any]]:
    config = MODELS[name]
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config))
        begun = time.perf_counter()
        llm = make_llm(directory, args, eager=False)
        loaded = time.perf_counter() - begun
        timed(llm, prompts(1, args.prompt, config["vocab_size"], 0), 1)
        first = time.perf_counter() - begun
        print(f"{name}: loaded and recorded in {loaded:.1f} s, first token after {first:.1f} s", flush=True)
        for batch in args.batches:
            timed(
                llm, prompts(batch, args.prompt, config["vocab_size"], 1), args.out // 2
            )  # compiles what is left
            ones, halves, wholes = [], [], []
            for rep in range(args.reps):
                given = prompts(batch, args.prompt, config["vocab_size"], 2 + rep)
                ones.append(timed(llm, given, 1)[0])
                halves.append(timed(llm, given, args.out // 2)[0])
                seconds, tokens = timed(llm, given, args.out)
                wholes.append(seconds)
            step = (statistics.median(wholes) - statistics.median(halves)) / (args.out - args.out // 2)
            least = floor(llm, batch, args.prompt + 3 * args.out // 4, copy, matmul)
            found.append(
                {
                    "model": name,
                    "batch": batch,
                    "step_ms": 1e3 * step,
                    "tokens_per_s": batch / step,
                    "prefill_tokens_per_s": batch * args.prompt / statistics.median(ones),
                    "floor_ms": 1e3 * least,
                    "of_floor": least / step,
                    "start_s": first,
                    "given": given,
                    "tokens": [line[:CHECKED] for line in tokens],
                }
            )
            print(_line(found[-1]), flush=True)
            if args.profile:
                profile(llm, given, args.out // 4)
        del llm
        torch.cuda.empty_cache()
        if not args.unchecked:
            eager = make_llm(directory, args, eager=True)
            for row in found:
                expected = [line[:CHECKED] for line in timed(eager, row["given"], args.out)[1]]
                row["equal"] = sum(a == b for a, b in zip(expected, row["tokens"], strict=True))
                print(
                    f"{name}, batch {row['batch']}: {row['equal']} equal to the engine that records nothing"
                )
    for row in found:
        del row["given"], row["tokens"]
    return found


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']:12} batch {row['batch']:4} step {row['step_ms']:7.3f} ms  {row['tokens_per_s']:9.0f} tok/s  "
        f"prefill {row['prefill_tokens_per_s']:9.0f} tok/s  floor {row['floor_ms']:6.3f} ms ({row['of_floor']:.0%})"
    )


def profile(llm: LLM, given: list[list[int]], tokens: int) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        timed(llm, given, tokens)
    rows = sorted(recorded.key_averages(), key=lambda e: e.self_device_time_total, reverse=True)[:28]
    for event in rows:
        print(f"   {event.self_device_time_total / 1e3:9.2f} ms {event.count:7} x  {event.key[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), type=lambda s: s.split(","))
    parser.add_argument("--batches", default="1,16,64,256", type=lambda s: [int(n) for n in s.split(",")])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=128)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--max-len", type=int, default=4096)
    parser.add_argument("--batched-tokens", type=int, default=8192)
    parser.add_argument("--memory", default="80GiB")
    parser.add_argument(
        "--unchecked", action="store_true", help="do not compare with an engine that is eager"
    )
    parser.add_argument("--profile", action="store_true", help="print the kernels of a short run")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch finds no CUDA device here: there is nothing to measure")
        return
    copy, matmul = rates()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a copy moves {copy / 1e12:.2f} TB/s, "
        f"a matrix product does {matmul / 1e12:.0f} TFLOP/s"
    )
    rows = [row for name in args.models for row in measure(name, args, copy, matmul)]
    print()
    for row in rows:
        print(_line(row) + ("" if "equal" not in row else f"  equal {row['equal']}"))
    if args.json:
        args.json.write_text(json.dumps({"copy": copy, "matmul": matmul, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
