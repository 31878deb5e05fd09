"""The command line: one file for each verb."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..config import ConfigError
from ..version import version
from . import bench, chat, complete, eval, models, plan, serve, verify
from .options import unknown

VERBS = (serve, chat, complete, plan, verify, eval, models, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """0: done. 1: it could not be done. 2: the command line was wrong. 130: interrupted."""
    args = parse(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader went away; what is left in the buffer must not be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    args, left = make_parser().parse_known_args(argv)
    if left:
        flags = [flag for action in args.parser._actions for flag in action.option_strings]
        try:
            unknown(left[0].partition("=")[0], flags, "there is no option")
        except ConfigError as error:
            args.parser.error(str(error))
    return args


class Verb(argparse.ArgumentParser):
    """Names in full: an abbreviation may mean something else tomorrow. Descriptions as they are written."""

    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=form, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Without the usage, which is longer than a screen."""
        self.exit(2, f"{self.prog}: {message}\nTry {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="A serving engine for hybrid language models: attention beside recurrent state.",
        epilog="Options may also come from the environment (HOLDFAST_PORT=9000) or from a file (--config).",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Verb)
    for verb in VERBS:
        verb.add(commands)
    return parser
