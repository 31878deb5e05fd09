"""`holdfast bench latency | throughput | serve`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from ..bench import report, workloads
from ..bench.serving import Target, drive
from ..progress import Progress
from .options import add_engine_options, engine_config
from .terminal import fail, load_model

SERVE_HELP = """\
Send requests to any OpenAI-compatible server, and measure what comes back.

  holdfast bench serve --url http://127.0.0.1:8000 --rate 8 --requests 200
  holdfast bench serve --workload shared-prefix --groups 4 --share 0.8 --plot times.svg
  holdfast bench serve --workload trace --trace requests.jsonl --goodput ttft:300 tpot:50

poisson        prompts that have nothing in common, arriving at random at --rate a second
shared-prefix  prompts of a group begin alike
trace          a file of JSON lines: timestamp (milliseconds), output_length, and prompt, or input_length and hash_ids
"""
WORKLOADS = ("poisson", "shared-prefix", "trace")
GOALS = ("ttft", "tpot", "e2el")


def add(commands: Any) -> None:
    bench = commands.add_parser("bench", help="how fast: an engine alone, or a server under load")
    kinds = bench.add_subparsers(title="kinds", metavar="KIND", required=True)
    _add_latency(kinds)
    _add_throughput(kinds)
    _add_serve(kinds)


def _add_latency(kinds: Any) -> None:
    latency = kinds.add_parser("latency", help="how long one batch takes")
    latency.set_defaults(run=run_latency, parser=latency)
    latency.add_argument("model", nargs="?", metavar="MODEL")
    _add_sizes(latency, 128, 128)
    latency.add_argument("--batch", type=int, default=1, help="(default: %(default)s)")
    latency.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    add_engine_options(latency)


def _add_throughput(kinds: Any) -> None:
    throughput = kinds.add_parser("throughput", help="how much an engine gets done when it never has to wait")
    throughput.set_defaults(run=run_throughput, parser=throughput)
    throughput.add_argument("model", nargs="?", metavar="MODEL")
    _add_sizes(throughput, 128, 128)
    throughput.add_argument("--requests", type=int, default=128, help="(default: %(default)s)")
    add_engine_options(throughput)


def _add_serve(kinds: Any) -> None:
    serve = kinds.add_parser("serve", help="any OpenAI-compatible server under load", description=SERVE_HELP)
    serve.set_defaults(run=run_serve, parser=serve)
    serve.add_argument("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    serve.add_argument("--model", help="(default: the first that the server has)")
    serve.add_argument("--api-key", help="(default: HOLDFAST_API_KEY, OPENAI_API_KEY)")
    serve.add_argument("--chat", action="store_true", help="/v1/chat/completions instead of /v1/completions")
    serve.add_argument(
        "--ignore-eos", action="store_true", help="answers of full length; not every server can"
    )
    serve.add_argument("--workload", choices=WORKLOADS, default="poisson", help="(default: %(default)s)")
    serve.add_argument("--requests", type=int, default=100, help="(default: %(default)s)")
    serve.add_argument(
        "--rate", type=float, default=float("inf"), help="arrivals a second (default: all at once)"
    )
    serve.add_argument(
        "--concurrency", type=int, default=256, help="most that run at once (default: %(default)s)"
    )
    _add_sizes(serve, 128, 64, "words of a prompt, about one token each")
    serve.add_argument("--groups", type=int, default=8, help="of shared-prefix (default: %(default)s)")
    serve.add_argument(
        "--share", type=float, default=0.75, help="of a prompt that is its group's (default: %(default)s)"
    )
    serve.add_argument("--trace", type=Path, metavar="FILE", help="of trace")
    serve.add_argument("--speed", type=float, default=1.0, help="of trace: 2 sends it in half the time")
    serve.add_argument(
        "--goodput", nargs="+", default=[], metavar="GOAL:MS", help=f"count requests that keep to {GOALS}"
    )
    serve.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: %(default)s)")
    serve.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw how times are distributed")


def _add_sizes(
    parser: argparse.ArgumentParser, input_len: int, output_len: int, told: str = "tokens of a prompt"
) -> None:
    parser.add_argument("--input-len", type=int, default=input_len, help=f"{told} (default: %(default)s)")
    parser.add_argument(
        "--output-len", type=int, default=output_len, help="tokens of an answer (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_latency(args: argparse.Namespace) -> int:
    from ..bench.offline import latency

    try:
        llm = load_model(args.model, engine_config(args))
        with Progress("Measuring", args.rounds + 1, lambda: "rounds") as bar:
            told = latency(llm, args.batch, args.input_len, args.output_len, args.rounds, bar.advance)
    except (OSError, ValueError) as error:
        return fail(error)
    return _print(told, args)


def run_throughput(args: argparse.Namespace) -> int:
    from ..bench.offline import throughput

    try:
        llm = load_model(args.model, engine_config(args))
        told = throughput(llm, args.requests, args.input_len, args.output_len, seed=0)
    except (OSError, ValueError) as error:
        return fail(error)
    return _print(told, args)


def run_serve(args: argparse.Namespace) -> int:
    """1 if a request failed: numbers of a server that answers wrongly are worth nothing."""
    try:
        goals = dict(_goal(text) for text in args.goodput)
        shots = _shots(args)
    except (OSError, ValueError) as error:
        args.parser.error(str(error))
    key = args.api_key or os.environ.get("HOLDFAST_API_KEY") or os.environ.get("OPENAI_API_KEY")
    target = Target(args.url, args.model, key, args.chat, args.ignore_eos, args.seed)
    try:
        with Progress("Serving", len(shots), lambda: f"{bar.done}/{len(shots)} requests") as bar:
            outcomes, seconds = asyncio.run(drive(target, shots, args.concurrency, bar.advance))
    except Exception as error:
        return fail(f"{args.url}: {error}")
    told = report.summary(outcomes, seconds, goals)
    if args.plot:
        report.draw([outcome for outcome in outcomes if outcome.error is None], args.plot)
    _print(told, args)
    if told["failed"]:
        first = next(outcome.error for outcome in outcomes if outcome.error)
        return fail(f"{told['failed']} of {told['requests']} requests failed, the first with {first}")
    return 0


def _shots(args: argparse.Namespace) -> list[workloads.Shot]:
    for name in ("requests", "concurrency", "input_len", "output_len", "groups"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    if args.rate <= 0 or args.speed <= 0:
        raise ValueError("--rate and --speed must be more than 0")
    sizes = (args.requests, args.rate, args.input_len, args.output_len, args.seed)
    if args.workload == "poisson":
        return workloads.poisson(*sizes)
    if args.workload == "shared-prefix":
        return workloads.shared_prefix(*sizes, args.groups, args.share)
    if args.trace is None:
        raise ValueError("--workload trace needs --trace FILE")
    return workloads.trace(args.trace, args.requests, args.seed, args.speed)


def _goal(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in GOALS:
        raise ValueError(f"--goodput {text}: write it like ttft:300; there are {', '.join(GOALS)}")
    return name, float(limit)


def _print(told: dict[str, Any], args: argparse.Namespace) -> int:
    print(json.dumps(told, indent=2) if args.json else report.render(told))
    return 0
