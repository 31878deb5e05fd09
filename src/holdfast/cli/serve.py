"""`holdfast serve`: a model over HTTP."""

from __future__ import annotations

import argparse
from typing import Any

from ..config import EngineConfig
from ..server.options import HELP as SERVER_HELP
from ..server.options import ServerOptions
from .options import add_engine_options, add_options, gather
from .terminal import fail, say

HELP = """\
Serve a model to OpenAI's clients, and to everything that speaks like them.

  holdfast serve path/to/model --port 8000
  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "The tide", "max_tokens": 16}'

Only this machine can reach it, unless --host says otherwise. Ctrl-C lets running requests end first; a second one
does not. Options may come from the environment as well (HOLDFAST_PORT=9000), or from a YAML file (--config).
"""


def add(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI's clients expect it",
        description=HELP,
    )
    serve.set_defaults(run=run, parser=serve)
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a directory, or a model that was downloaded; without it, the built-in",
    )
    add_options(serve, ServerOptions, SERVER_HELP, "server")
    add_engine_options(serve)


def run(args: argparse.Namespace) -> int:
    try:
        config, options = gather(args, [EngineConfig, ServerOptions])
    except ValueError as error:
        args.parser.error(str(error))
    from ..server.run import serve  # not above: --help needs none of what it brings

    if args.model is None:
        from ..builtin import NOTICE

        say(NOTICE)
    try:
        return serve(args.model, config, options)
    except (OSError, ValueError) as error:
        return fail(error)
