"""Sets of questions: those that come with Holdfast, and files in the formats that such sets are published in.

recall   what a conversation said before, in several forms, at 256 to 1,900 tokens (`training/recall.py` makes it)
gsm8k    the first 300 problems of GSM8K's test part
ifeval   the prompts of IFEval; whether an answer obeys them is not judged here
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETS = Path(__file__).parent / "sets"
CHOICES = ("A", "B", "C", "D")

Message = dict[str, str]


@dataclass(frozen=True)
class Question:
    messages: list[Message]
    right: Callable[[str], bool] | None = None
    """Is this text the answer? None: that is not judged."""


@dataclass(frozen=True)
class QuestionSet:
    name: str
    questions: list[Question]
    max_tokens: int
    """What an answer needs."""

    @property
    def judged(self) -> bool:
        return all(question.right for question in self.questions)


def set_names() -> list[str]:
    return sorted(path.stem for path in SETS.glob("*.jsonl"))


def read_set(name_or_path: str, limit: int | None = None) -> QuestionSet:
    """`limit` takes so many, spread over the whole set."""
    own = SETS / f"{name_or_path}.jsonl"
    path = own if own.is_file() else Path(name_or_path).expanduser()
    if not path.is_file():
        raise ValueError(f"{name_or_path} is no file, and no set of Holdfast's: {', '.join(set_names())}")
    rows = list(_rows(path))
    form = next((form for form in FORMS if rows and form.fields <= rows[0].keys()), None)
    if form is None:
        known = "; ".join(f"{form.name}: {', '.join(sorted(form.fields))}" for form in FORMS)
        raise ValueError(f"{path} has no rows of a format that is known here: {known}")
    if limit is not None and limit < len(rows):
        rows = [rows[place * len(rows) // limit] for place in range(limit)]
    try:
        questions = [form.question(row) for row in rows]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: a row is not as {form.name} has it: {error!r}") from error
    return QuestionSet(path.stem, questions, form.max_tokens)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
            return
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}, is not a JSON object")
            yield row


def _ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def _recall(row: dict[str, Any]) -> Question:
    answer = row["answer"]
    return Question(row["messages"], lambda said: said.strip() == answer)


def _choice(row: dict[str, Any]) -> Question:
    listed = "\n".join(f"{letter}. {row[letter]}" for letter in CHOICES)
    answer = row["answer"].strip()
    return Question(_ask(f"{row['question']}\n{listed}\n答案:"), lambda said: chosen_letter(said) == answer)


def _problem(row: dict[str, Any]) -> Question:
    answer = last_number(row["answer"])
    return Question(_ask(row["question"]), lambda said: last_number(said) == answer)


def _prompt(row: dict[str, Any]) -> Question:
    return Question(_ask(row["prompt"]))


def chosen_letter(text: str) -> str | None:
    found = re.search(r"(?<![A-Za-z])[ABCD](?![A-Za-z])", text)
    return found.group() if found else None


def last_number(text: str) -> str | None:
    """As GSM8K is scored: the last number that is said, without its commas."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else None


@dataclass(frozen=True)
class Form:
    name: str
    fields: frozenset[str]
    question: Callable[[dict[str, Any]], Question]
    max_tokens: int


FORMS = (
    Form("Holdfast", frozenset({"messages", "answer"}), _recall, 640),
    Form("C-Eval", frozenset({"question", *CHOICES, "answer"}), _choice, 16),
    Form("GSM8K", frozenset({"question", "answer"}), _problem, 256),
    Form("IFEval", frozenset({"prompt"}), _prompt, 256),
)
"""The first that fits a file's first row."""
