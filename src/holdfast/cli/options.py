"""Options from flags, from the environment (HOLDFAST_*) and from a YAML file, in that order.

Names are those of a dataclass's fields. One that nothing knows is refused, and the nearest that exists is named.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from ..config import DTYPES, LOAD_FORMATS, SANITIZERS, STATE_DTYPES, ConfigError, EngineConfig
from ..server.options import HELP as SERVER_HELP

PREFIX = "HOLDFAST_"
OTHERS = {"HOLDFAST_CONFIG"}
"""In the environment, but no options: which YAML file to read."""

SIZES = ("int | str", "int | str | None")
PLAIN = {"int": int, "float": float, "str": str}

ENGINE_HELP = {
    "device": "cpu, cuda or cuda:N",
    "dtype": f"of weights and activations: {', '.join(DTYPES)}",
    "state_dtype": f"of recurrent state: {', '.join(STATE_DTYPES)}",
    "max_num_seqs": "requests that may run at once",
    "max_num_batched_tokens": "tokens of one step",
    "page_size": "tokens of a page of KV",
    "max_model_len": "tokens of one request (default: all the model's positions, or what fits)",
    "num_pages": "pages of KV (default: what fits)",
    "num_slots": "slots of recurrent state: one for each running request, the others keep prefixes",
    "num_checkpoints": "how many of the slots keep prefixes (default: what fits)",
    "enable_prefix_caching": "requests resume from what others with the same beginning left behind",
    "memory": "all that the engine may take, like 80GiB (default: most of what is free here)",
    "load_format": f"{', '.join(LOAD_FORMATS)}; dummy needs no weights",
    "fold_every": "tokens between checkpoints of a running request",
    "speculative_config": 'how drafts are made, as in \'{"method": "ngram", "num_speculative_tokens": 4}\'',
    "overlap": "plan a step while the one before it runs",
    "exact": "the same bits for every batch and cut, on the CPU in float32",
    "backend": "whose operations run (default: triton on a GPU, elsewhere reference)",
    "eager": "record nothing at the start: every operation is launched by itself",
    "sanitizer": f"of state: {', '.join(SANITIZERS)}",
    "seed": "of requests that name none",
}


def add_engine_options(parser: argparse.ArgumentParser, **told: str) -> None:
    """All fields of EngineConfig. `told` is help that a verb has better words for."""
    add_options(parser, EngineConfig, ENGINE_HELP | told, "engine")
    parser.add_argument("--config", metavar="FILE", help="YAML: more options, under the same names")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    return gather(args, [EngineConfig])[0]


def add_options(parser: argparse.ArgumentParser, kind: Any, told: Mapping[str, str], title: str) -> None:
    group = parser.add_argument_group(title)
    for field in fields(kind):
        default, help_ = field.default, told.get(field.name, "")
        if default is not None and "(default" not in help_:
            help_ += f" (default: {default})"
        flag = f"--{field.name.replace('_', '-')}"
        if field.type == "bool":
            group.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_
            )
        else:
            first = str(field.type).split(" | ")[0]
            metavar = "SIZE" if field.type in SIZES else first.upper() if first in PLAIN else "JSON"
            group.add_argument(
                flag, type=_parser(str(field.type)), metavar=metavar, default=argparse.SUPPRESS, help=help_
            )


def gather(args: argparse.Namespace, kinds: Sequence[Any]) -> list[Any]:
    """One of each kind. Raises ConfigError for what cannot be used, or does not exist."""
    types = {field.name: str(field.type) for kind in kinds for field in fields(kind)}
    named = args.config or os.environ.get("HOLDFAST_CONFIG")
    values = _from_yaml(Path(named).expanduser(), types) if named else {}
    values |= _from_environment(types)
    values |= {name: getattr(args, name) for name in types if hasattr(args, name)}
    return [kind(**{f.name: values[f.name] for f in fields(kind) if f.name in values}) for kind in kinds]


def _from_environment(types: Mapping[str, str]) -> dict[str, Any]:
    known = {PREFIX + name.upper(): name for name in (*ENGINE_HELP, *SERVER_HELP)}
    values = {}
    for variable, text in os.environ.items():
        if not variable.startswith(PREFIX) or variable in OTHERS:
            continue
        if variable not in known:
            unknown(variable, (*known, *OTHERS), "there is no environment variable")
        if (name := known[variable]) in types:  # others are for other verbs
            values[name] = _parsed(types[name], text, variable)
    return values


def _from_yaml(path: Path, types: Mapping[str, str]) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold names and values, like 'port: 8000'")
    values = {}
    for given, value in found.items():
        name = str(given).replace("-", "_")
        if name not in {*types, *ENGINE_HELP, *SERVER_HELP}:
            unknown(str(given), [*types], f"{path}: there is no option")
        if name in types:
            values[name] = value
    return values


def unknown(name: str, known: Iterable[str], sentence: str) -> NoReturn:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    raise ConfigError(f"{sentence} {name}" + (f"; did you mean {close[0]}?" if close else ""))


def _parsed(annotation: str, text: str, where: str) -> Any:
    try:
        return _parser(annotation)(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"{where}={text!r}: {error}") from None


def _parser(annotation: str) -> Callable[[str], Any]:
    kinds = [kind for kind in annotation.split(" | ") if kind != "None"]
    if kinds == ["bool"]:
        return _boolean
    if kinds == ["int", "str"]:
        return lambda text: int(text) if text.lstrip("-").isdigit() else text
    return PLAIN.get(kinds[0], json_option)


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in words:
        raise ValueError("must be true or false")
    return words[text.lower()]


def json_option(text: str) -> Any:
    """For options that have options of their own."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
