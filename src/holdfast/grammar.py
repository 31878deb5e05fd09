"""The form of an answer, token by token. Whatever is known here of llguidance, nobody else knows.

A form is compiled once for the model's tokenizer and followed by a matcher for each request that asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from .structured import Structured
from .text import WHITE_SPACE, Tokenizer, parts, without_notes

COMPILED = 256
"""Forms that are kept: services ask for the same ones again and again."""
MOST_SYMBOLS = 20_000
"""Of a compiled form. While one is compiled no step is launched: with these bounds, for half a second at most."""
MOST_EBNF = 1 << 14
"""Characters. To rewrite it takes time as the square of its rules."""
MOST_PARTS = 256
"""Of a schema that are tried one by one, to say where it is wrong."""


class GrammarError(ValueError):
    """A form that no answer can have, or that is not understood; the text says where."""


class Grammars:
    """Of one model. The tokenizer is read when the first form is asked for: whoever asks for none pays nothing."""

    def __init__(self, directory: Path, vocab_size: int) -> None:
        self._directory = directory
        self._vocab_size = vocab_size
        self._compiled = lru_cache(maxsize=COMPILED)(self._compile)

    def check(self, structured: Structured) -> None:
        """Raises GrammarError if no matcher can be made."""
        self._compiled(structured)

    def matcher(self, structured: Structured) -> Matcher:
        return Matcher(self._compiled(structured).deep_copy(), self._tokenizer.eos_token_ids)

    def _compile(self, structured: Structured) -> Any:
        try:
            matcher = self._matcher(_grammar(structured, self._tokenizer))
            if not matcher.is_error():
                return matcher
            where, matcher = self._place(structured, matcher)
            reason = matcher.get_error()
        except GrammarError:
            raise
        except (ValueError, RecursionError) as error:  # it is nested too deeply to be read
            where, reason = f"structured.{structured.kind}", str(error)
        raise GrammarError(f"{' '.join(where.split())}: {_first_lines(reason)}")

    def _place(self, structured: Structured, failed: Any) -> tuple[str, Any]:
        """Where it fails, and the matcher that says why."""
        where = f"structured.{structured.kind}"
        if structured.kind == "json":
            return self._narrowed(where, json.loads(structured.text), failed)
        for schema in islice(_schemas_in(structured), MOST_PARTS):
            alone = self._matcher(_grammar(Structured(json=schema), self._tokenizer))
            if alone.is_error():
                title = str(schema.get("title"))
                return self._narrowed(
                    title if title.startswith("tools.") else f"{where} %json", schema, alone
                )
        return where, failed

    def _narrowed(self, where: str, schema: Any, failed: Any) -> tuple[str, Any]:
        """The innermost part of a schema that fails by itself: the compiler does not say where it was."""
        root, tried = schema, 0
        while True:
            for name, part in islice(parts(schema), MOST_PARTS - tried):
                tried += 1
                alone = part | {key: root[key] for key in ("$defs", "definitions") if key in root}
                matcher = self._matcher(_grammar(Structured(json=alone), self._tokenizer))
                if matcher.is_error():
                    where, schema, failed = f"{where}.{name}", part, matcher
                    break
            else:
                return where, failed

    def _matcher(self, grammar: str) -> Any:
        library = _library()
        limits = library.LLParserLimits(max_grammar_size=MOST_SYMBOLS, verbose_errors=False)
        return library.LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if not (self._directory / "tokenizer.json").is_file():
            raise GrammarError("structured needs text, and the model's directory has no tokenizer.json")
        return Tokenizer.from_dir(self._directory)

    @cached_property
    def _vocabulary(self) -> Any:
        eos = sorted(token for token in self._tokenizer.eos_token_ids if token < self._vocab_size)
        if not eos:
            raise GrammarError("structured needs an end: the model names no end-of-text token")
        size = max(self._vocab_size, self._tokenizer.vocab_size)
        return _library().LLTokenizer(self._tokenizer.serialised(), n_vocab=size, eos_token=eos)


class Matcher:
    """How far an answer has come in its form. It follows certain tokens only; of guesses it just looks at what could
    follow them."""

    def __init__(self, matcher: Any, eos_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos = eos_token_ids
        self._left = False

    @property
    def failed(self) -> bool:
        """The form became too involved to follow, or a token was chosen that it does not permit, which must not
        happen. Such an answer is not to be trusted, and ends."""
        return self._left or bool(self._matcher.is_error())

    def push(self, tokens: Sequence[int]) -> None:
        """Those that were chosen. Whatever comes after an end-of-text token leads nowhere."""
        for token in tokens:
            if not self._follow(token):
                self._left |= token not in self._eos
                return

    def permitted(self, drafts: Sequence[int], parents: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Places of a window, and a bit for each token that may be chosen there, the lowest of a byte first.

        Place 0 is after the last certain token, place i + 1 after drafts[i], which follows place parents[i]. Places
        after a draft that the form does not permit, or that ends the answer, are left out: nobody gets there.
        """
        following: list[list[int]] = [[] for _ in range(len(drafts) + 1)]
        for draft, parent in enumerate(parents[: len(drafts)]):
            following[parent].append(draft)
        return self._permitted(0, drafts, following)

    def _permitted(
        self, place: int, drafts: Sequence[int], following: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, bytes]]:
        yield place, self._matcher.compute_bitmask()
        for draft in following[place]:
            if self._follow(drafts[draft]):
                yield from self._permitted(draft + 1, drafts, following)
                self._matcher.rollback(1)

    def _follow(self, token: int) -> bool:
        return token not in self._eos and self._matcher.try_consume_tokens([token]) == 1


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise GrammarError(f"structured needs the llguidance package: {error}") from error
    return llguidance


def _grammar(structured: Structured, tokenizer: Tokenizer) -> str:
    form = _form(structured)
    if structured.after is None:
        return json.dumps({"grammars": [form]})
    return json.dumps({"grammars": [_opening(structured.after, tokenizer), form | {"name": "form"}]})


def _form(structured: Structured) -> dict[str, Any]:
    make, text = _library().LLMatcher, structured.text
    match structured.kind:
        case "json":
            made = make.grammar_from_json_schema(json.dumps(without_notes(json.loads(text))), WHITE_SPACE)
        case "regex":
            made = make.grammar_from_regex(text)
        case "choice":
            return {"lark_grammar": "start: " + " | ".join(map(quoted, text))}
        case _:
            return {"lark_grammar": _lark(text)}
    [form] = json.loads(made)["grammars"]
    return form


def _schemas_in(structured: Structured) -> Iterator[dict[str, Any]]:
    """Of a grammar. Those of tools have their names for titles."""
    for found in re.finditer(r"%json\s*(?=\{)", structured.text if structured.kind == "grammar" else ""):
        try:
            yield json.JSONDecoder().raw_decode(structured.text, found.end())[0]
        except (ValueError, RecursionError):
            return


def _lark(grammar: str) -> str:
    """EBNF is rewritten: the grammars of other engines are in it."""
    if "::=" not in grammar or re.search(r"(?m)^\s*start\s*:(?!:=)", grammar):
        return grammar
    if len(grammar) > MOST_EBNF:
        raise GrammarError(
            f"structured.grammar: {len(grammar):,} characters of EBNF; it may have {MOST_EBNF:,}"
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # it has no kind of its own for all that may be wrong with a text
        raise GrammarError(f"structured.grammar: {_first_lines(str(error))}") from None


def _opening(end: str, tokenizer: Tokenizer) -> dict[str, str]:
    """Any text up to `end`, and then the form."""
    if (token := tokenizer.special_id(end)) is not None:
        return {"lark_grammar": f"start: before <[{token}]> @form\nbefore: /(.|\\n)*/"}
    return {"lark_grammar": f"start: before @form\nbefore[suffix={quoted(end)}]: /(.|\\n)*/"}


def quoted(text: str) -> str:
    """As Lark reads a text that is meant literally."""
    return json.dumps(text, ensure_ascii=False)


def _first_lines(error: str) -> str:
    """What is wrong, in one line; the compiler goes on to draw it."""
    lines = [line.strip() for line in error.strip().splitlines() if line.strip().strip("^")]
    drawn = next(
        (place for place, line in enumerate(lines) if line[:1].isdigit() and " | " in line), len(lines)
    )
    return "; ".join(lines[: max(1, drawn)])
