"""Chat templates: the jinja that comes with a model, run in a sandbox because it is somebody else's code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class ChatTemplateError(ValueError):
    """Messages could not be turned into a prompt; the text says why."""


class ChatTemplate:
    """A model's templates by name, and the special tokens they may write."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        self.special_tokens = dict(special_tokens)

    @classmethod
    def from_dir(
        cls, directory: Path, tokenizer_config: Mapping[str, Any], special_tokens: Mapping[str, str]
    ) -> ChatTemplate:
        """Files beside the weights win over the tokenizer's config, as everywhere on the hub."""
        sources = _sources_in_files(directory) or _sources_in_config(tokenizer_config)
        return cls(sources, special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt as text. `variables` are the model's own switches, such as `enable_thinking`."""
        template = self._compiled(tools)
        values = {
            "messages": _plain(messages),
            "tools": _plain(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self.special_tokens,
            **variables,
        }
        try:
            return template.render(values)
        except Exception as error:  # the template is foreign code: whatever it raises is its answer
            raise ChatTemplateError(f"the model's chat template refused these messages: {error}") from error

    def source(self, *, tools: bool) -> str | None:
        """The template for conversations with tools, or without."""
        names = ("tool_use", "default") if tools else ("default",)
        return next((self.sources[name] for name in names if name in self.sources), None)

    def _compiled(self, tools: Sequence[Mapping[str, Any]] | None) -> jinja2.Template:
        source = self.source(tools=bool(tools))
        if source is None:
            has = f"only templates named {', '.join(self.sources)}" if self.sources else "no chat template"
            raise ChatTemplateError(f"the model has {has}: give it a text prompt instead of messages")
        try:
            return _compile(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the model's chat template, line {error.lineno}: {error.message}"
            ) from error


def _sources_in_files(directory: Path) -> dict[str, str]:
    extra = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    sources = {path.stem: path.read_text(encoding="utf-8") for path in extra}
    default = directory / "chat_template.jinja"
    if default.is_file():
        sources["default"] = default.read_text(encoding="utf-8")
    return sources


def _sources_in_config(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    found = tokenizer_config.get("chat_template")
    if not found:
        return {}
    if isinstance(found, str):
        return {"default": found}
    return {entry["name"]: entry["template"] for entry in found}


def _plain(value: Any) -> Any:
    """A copy in plain JSON types: a template may read what the caller gave, not call into it."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ChatTemplateError(f"messages must be plain data, as in JSON: {error}") from error


class _Generation(Extension):
    """`{% generation %}` marks what a model should learn to say; for a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _tojson
    return environment.from_string(source)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models have not been trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
