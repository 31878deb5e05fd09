"""Writes docs/models.md: what the registry knows, in the words of the architectures' own files.

make docs
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.models.registry import ARCHITECTURES

PAGE = Path(__file__).with_suffix(".md")
BEFORE = """\
# Models

An architecture is what `architectures` in a model's `config.json` names. Each is one file, to be read beside its
paper: how its config is read, what its layers are, what the weights are called. A field of a config that is not
implemented is refused by name, as is a tensor that has no place.

Every one of them is compared with `transformers`, in float32: log-probabilities within 1e-4 at every position of
prompt and answer, and the same greedy tokens, whole and in chunks, alone and in company, pre-empted and resumed.

| `architectures` | what it is | file |
| --- | --- | --- |
"""
AFTER = """
This page is written by `make docs` from the registry.
"""


def render() -> str:
    names: dict[str, list[str]] = {}
    for name, architecture in ARCHITECTURES.items():
        names.setdefault(architecture.parse.__module__, []).append(name)
    rows, notes = [], []
    for module in sorted(names, key=lambda module: names[module][0]):
        file = f"{module.rpartition('.')[2]}.py"
        first, *more = (sys.modules[module].__doc__ or "").strip().split("\n\n")
        called = "<br>".join(f"`{name}`" for name in names[module])
        rows.append(f"| {called} | {_line(first)} | [{file}](../src/holdfast/models/{file}) |\n")
        notes += [f"- `{names[module][0]}`: {' '.join(map(_line, more))}\n"] if more else []
    return "".join((BEFORE, *rows, "\n", *notes, AFTER))


def _line(paragraph: str) -> str:
    return " ".join(paragraph.split())


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
