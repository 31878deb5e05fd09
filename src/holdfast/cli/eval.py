"""`holdfast eval`: real prompts, answered plainly and with everything on."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..config import DTYPES
from .terminal import fail

HELP = """\
Real prompts, answered twice: one at a time with nothing on (or a few, with --together), and in company, in chunks,
resumed from prefixes, overlapped and with drafts. The answers must be the same, token by token: in float32 unless two
tokens were within 1e-4, else within a small divergence. Where a set has answers, so many were right.

  recall    what was said before in a conversation: a broken state shows here
  gsm8k     300 problems of GSM8K
  ifeval    the prompts of IFEval

and any file of JSON lines or CSV in the format of GSM8K (question, answer), C-Eval (question, A, B, C, D, answer)
or IFEval (prompt). The status is 0 if all answers are the same, 1 if not, 2 if it could not be tried.

  holdfast eval --limit 20
  holdfast eval path/to/model --data gsm8k --data law_val.csv --json
"""


def add(commands: Any) -> None:
    verb = commands.add_parser(
        "eval", help="answers to real prompts: the same with everything on, and right", description=HELP
    )
    verb.set_defaults(run=run, parser=verb)
    verb.add_argument("model", nargs="?", metavar="MODEL", help="a directory; without it, the built-in model")
    verb.add_argument(
        "--data", action="append", metavar="SET", help="a name or a file; may be given several times"
    )
    verb.add_argument("--limit", type=int, metavar="INT", help="so many questions of each set")
    verb.add_argument(
        "--max-tokens", type=int, metavar="INT", help="of an answer (default: what a set needs)"
    )
    verb.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="INT",
        help="questions at a time with nothing on (default: 1)",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    verb.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and activations")
    verb.add_argument(
        "--memory",
        metavar="SIZE",
        help="all that each of the two engines may take (default: most of what is free)",
    )


def run(args: argparse.Namespace) -> int:
    from ..eval.questions import read_set, set_names  # needs no torch: a wrong name is told at once

    for name in ("limit", "max_tokens", "together"):
        if (value := getattr(args, name)) is not None and value < 1:
            args.parser.error(f"--{name.replace('_', '-')} {value} must be at least 1")
    try:
        sets = [read_set(name, args.limit) for name in args.data or set_names()]
    except (OSError, ValueError) as error:
        args.parser.error(f"--data: {error}")
    from ..eval import report
    from ..eval.run import Evaluation
    from ..hub import find_model

    try:
        engines = {name: getattr(args, name) for name in ("together", "device", "dtype", "memory")}
        evaluation = Evaluation(find_model(args.model), **engines)
        outcomes = list(evaluation.outcomes(sets, args.max_tokens))
    except (OSError, ValueError) as error:
        fail(error)
        return 2
    told = report.as_dict(outcomes)
    print(json.dumps(told, indent=2) if args.json else report.render(outcomes))
    return 0 if told["equal"] else 1
