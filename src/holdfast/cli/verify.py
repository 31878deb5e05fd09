"""`holdfast verify`: does a model give the same answers whatever the engine does?"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..config import DTYPES
from .options import ENGINE_HELP, json_option
from .terminal import fail

HELP = """\
Does a model give the same answers whatever the engine does? Each cell of a matrix answers the same requests
in another way (in company, in chunks, pre-empted, resumed, overlapped) and is compared with the plain path: one
request at a time, its prompt whole. The plain path is compared with transformers, where that is installed.

float32 must give the same tokens, unless two were within 1e-4, and log-probabilities within 1e-4; bfloat16 and
float16 a small divergence; exact mode the same bits. The status is 0 if all cells do, 1 if one does not, 2 if the
model cannot be verified at all.

  holdfast verify path/to/model --quick
  holdfast verify path/to/model --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'
  holdfast verify path/to/model --seed 7 --cell chunks-of-7     that cell again, with the same requests
"""


def add(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="whether a model gives the same answers whatever the engine does",
        description=HELP,
    )
    verify.set_defaults(run=run, parser=verify)
    verify.add_argument("model", nargs="?", metavar="MODEL", help="a directory; without it, a built-in model")
    verify.add_argument("--quick", action="store_true", help="fewer cells, fewer and shorter requests")
    verify.add_argument(
        "--cell", action="append", metavar="NAME", help="only this one; may be given several times"
    )
    verify.add_argument("--seed", type=int, default=0, help="of the requests (default: %(default)s)")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    verify.add_argument(
        "--speculative-config",
        type=json_option,
        metavar="JSON",
        help=f"a drafter to verify as well, in cells of its own: {ENGINE_HELP['speculative_config']}",
    )
    verify.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and activations")


def run(args: argparse.Namespace) -> int:
    from ..verify.cells import cell_names  # needs no torch: a wrong name is told at once

    names = args.cell or cell_names(quick=args.quick, drafter=args.speculative_config is not None)
    if unknown := sorted(set(names) - set(cell_names())):
        args.parser.error(f"--cell {unknown[0]}: the cells are {', '.join(cell_names())}")
    from ..hub import find_model
    from ..progress import Progress
    from ..verify import report
    from ..verify.matrix import Matrix

    outcomes = []
    try:
        options = {"device": args.device, "dtype": args.dtype}
        drafter = args.speculative_config
        matrix = Matrix(find_model(args.model), args.seed, quick=args.quick, drafter=drafter, **options)
        with Progress("Verifying", len(names), lambda: names[min(bar.done, len(names) - 1)]) as bar:
            for outcome in matrix.outcomes(names):
                outcomes.append(outcome)
                bar.advance()
    except (OSError, ValueError) as error:
        fail(error)
        return 2
    if drafter is not None:
        options["speculative_config"] = json.dumps(drafter)
    again = report.command(args.model, args.seed, quick=args.quick, **options)
    told = report.as_dict(outcomes, again)
    print(json.dumps(told, indent=2) if args.json else report.render(outcomes, again))
    return 0 if told["equal"] else 1
