"""`holdfast complete`: one continuation of a text."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from ..corruption import StateCorruption
from .options import add_engine_options, engine_config
from .terminal import fail, load_model

HELP = """\
Continue a text, as the model's authors advise unless told otherwise. The continuation goes to standard output.

  holdfast complete "The tide" --model path/to/model --max-tokens 64
  cat story.txt | holdfast complete --json
"""
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "n")


def add(commands: Any) -> None:
    complete = commands.add_parser(
        "complete",
        help="continue a text",
        description=HELP,
    )
    complete.set_defaults(run=run, parser=complete)
    complete.add_argument("prompt", nargs="?", metavar="TEXT", help="(default: what is on standard input)")
    complete.add_argument(
        "--model", help="a directory, or a model that was downloaded; without it, the built-in"
    )
    complete.add_argument(
        "--json", action="store_true", help="print tokens, reasons and times as well, as JSON"
    )
    sampling = complete.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, help="longest continuation")
    sampling.add_argument("--temperature", type=float, help="0 always takes the likeliest token")
    sampling.add_argument("--top-p", type=float)
    sampling.add_argument("--top-k", type=int)
    sampling.add_argument("-n", type=int, help="continuations")
    sampling.add_argument(
        "--stop", action="append", metavar="TEXT", help="ends it; may be given several times"
    )
    add_engine_options(complete, seed="the same seed and prompt give the same continuation")


def run(args: argparse.Namespace) -> int:
    try:
        llm = load_model(args.model, engine_config(args))
        given = {name: value for name in SAMPLING if (value := getattr(args, name)) is not None}
        params = replace(
            llm.default_params(), **given, stop=args.stop or (), seed=getattr(args, "seed", None)
        )
        prompt = sys.stdin.read() if args.prompt is None else args.prompt
        [output] = llm.generate([prompt], params)
    except (OSError, ValueError, StateCorruption) as error:
        return fail(error)
    if args.json:
        print(json.dumps(_told(output), indent=2))
    else:
        print("\n".join(each.text for each in output.outputs))
    return 0


def _told(output: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.cached_tokens,
        "outputs": [
            {
                "text": each.text,
                "token_ids": list(each.token_ids),
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                "seconds": each.metrics.finished - each.metrics.arrived,
            }
            for each in output.outputs
        ],
    }
