"""What an answer may look like, as a user asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from json import dumps, loads
from typing import Any

MAX_CHARACTERS = 1 << 17
"""Of a schema, a regex or a grammar."""


@dataclass(frozen=True, kw_only=True)
class Structured:
    """One of four. An answer that ends by itself has this form; cut off by max_tokens, it is the beginning of one.

    Whatever is wrong with the form itself is refused when it is submitted, by the model's own grammars.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as text or as Python has it. Properties come in its order."""
    regex: str | None = None
    """Of the whole answer; in the syntax of Rust's regex crate, without look-around and back-references."""
    grammar: str | None = None
    """In Lark's syntax, from the rule `start`; or in EBNF, from `root`."""
    choice: Sequence[str] | None = None
    """One of these texts."""
    after: str | None = None
    """The answer has this form from where this text first ends: of a model that thinks aloud, "</think>"."""

    def __post_init__(self) -> None:
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            has = " and ".join(given) or "nothing"
            raise ValueError(f"structured has {has}; give one of {', '.join(KINDS)}")
        for name in ("regex", "grammar", "after"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"structured.{name}={value!r} must be a text of at least one character")
        if (size := len(str(self.text))) > MAX_CHARACTERS:
            raise ValueError(
                f"structured.{self.kind} has {size:,} characters; it may have {MAX_CHARACTERS:,}"
            )

    @property
    def kind(self) -> str:
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def text(self) -> Any:
        """What was given, whichever it is."""
        return getattr(self, self.kind)


KINDS = tuple(field.name for field in fields(Structured) if field.name != "after")


def _schema_text(schema: object) -> str:
    try:
        read = loads(schema) if isinstance(schema, str) else schema
        text = dumps(read)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"structured.json is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"structured.json is a {type(read).__name__}; a JSON schema is an object")
    return text


def _choices(choices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(choices, str) or not choices or not all(isinstance(text, str) for text in choices):
        raise ValueError(f"structured.choice={choices!r} must be a list of texts, one at least")
    if "" in choices:
        raise ValueError("structured.choice has an empty text; every choice must have a character")
    return tuple(choices)
