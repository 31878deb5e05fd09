"""`holdfast models`: what can be served, and what is here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HELP = """\
The architectures that are known, by the names in a model's config.json, the models that come with Holdfast, and those
that the hub's client has downloaded to this machine.
"""


def add(commands: Any) -> None:
    models = commands.add_parser("models", help="what can be served, and what is here", description=HELP)
    models.set_defaults(run=run, parser=models)
    models.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from ..builtin import builtin_models
    from ..hub import downloaded_models  # the registry brings torch, and --help should not
    from ..models.registry import ARCHITECTURES

    found = [(name, path, _architecture(path)) for name, path in downloaded_models()]
    if args.json:
        here = [
            {"name": name, "directory": str(path), "architecture": kind, "known": kind in ARCHITECTURES}
            for name, path, kind in found
        ]
        print(
            json.dumps(
                {"architectures": sorted(ARCHITECTURES), "builtin": [*builtin_models()], "downloaded": here},
                indent=2,
            )
        )
        return 0
    print("Architectures:", *(f"  {name}" for name in sorted(ARCHITECTURES)), sep="\n")
    print("Built in:", *(f"  {name}" for name in builtin_models()), sep="\n")
    print("Downloaded:" if found else "No model of the hub is in its client's cache here.")
    for name, _, kind in found:
        print(f"  {name}  {kind}{'' if kind in ARCHITECTURES else ' (not known)'}")
    return 0


def _architecture(directory: Path) -> str:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return str((config.get("architectures") or ["unnamed"])[0])
    except (OSError, ValueError, AttributeError):
        return "unreadable"
