"""Writes the questions about memory that `holdfast eval` asks: tasks of seeds that are never trained on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from .chat import Turn, question
from .prepare import CONTEXT
from .tasks import RECALL

LENGTHS = (256, 512, 1024, 1900)
"""Of the whole conversation, about, in tokens; what is to be copied takes half of it."""
CONVERSATIONS = 4


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m training recall", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows(tokenizer)), encoding="utf-8")


def rows(tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Of every second conversation two questions: the second resumes where the first one's text ended."""
    for name, task in RECALL.items():
        for length in LENGTHS:
            random = Random(f"eval {name} {length}")
            for number in range(CONVERSATIONS):
                turns = _fitting(tokenizer, lambda: task(random, length // 2 if name == "copy" else length))  # noqa: B023
                for asked in range(1, 1 + min(len(turns), 1 + number % 2)):
                    yield {"kind": f"{name}@{length}", **_asked(turns[:asked])}


def _fitting(tokenizer: Tokenizer, draw: Any) -> list[Turn]:
    while True:
        turns: list[Turn] = draw()
        text = "".join(question(turn.user) + turn.assistant for turn in turns[:2])
        if len(tokenizer.encode(text).ids) <= CONTEXT - 32:
            return turns


def _asked(turns: Sequence[Turn]) -> dict[str, Any]:
    messages = []
    for turn in turns:
        messages += [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": turn.assistant},
        ]
    return {"messages": messages[:-1], "answer": turns[-1].assistant}
