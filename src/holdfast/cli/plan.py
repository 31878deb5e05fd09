"""`holdfast plan`: what would fit."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..hub import find_model
from .options import add_engine_options, engine_config
from .terminal import fail

HELP = """\
What a model would take in memory, how many requests and tokens would fit, and what binds first.
Only config.json is read.

  holdfast plan path/to/model --dtype bfloat16 --device cuda --memory 80GiB --max-num-seqs 256
"""


def add(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what a model would take in memory, and what would fit",
        description=HELP,
    )
    plan.set_defaults(run=run, parser=plan)
    plan.add_argument(
        "model", nargs="?", metavar="MODEL", help="a directory with config.json; without it, a built-in model"
    )
    plan.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    add_engine_options(plan)


def run(args: argparse.Namespace) -> int:
    try:
        config = engine_config(args)
        from ..blueprint import Blueprint  # takes seconds, and --help should not

        capacity = Blueprint(find_model(args.model), config).capacity
    except (OSError, ValueError) as error:
        return fail(error)
    print(json.dumps(capacity.as_dict(), indent=2) if args.json else capacity.render())
    return 0
