"""What form an answer must have, and how it is read: response_format, guided options, tools and thoughts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..params import SamplingParams, Structured
from ..text import THINK, THOUGHT, AnswerReader, Tokenizer, Tool, ToolFormat
from .errors import ApiError
from .protocol import ChatRequest, Generation, NamedTool, TokenizeRequest

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
RESERVED = {"messages", "tools", "documents", "add_generation_prompt"}
"""What a template reads that has a parameter of its own."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def asked_form(asked: Generation) -> Structured | None:
    """At most one of the ways to ask for a form may be used."""
    forms = dict(_asked_forms(asked))
    if len(forms) > 1:
        first, second, *_ = forms
        raise ApiError(400, f"{first} and {second} are both given; an answer has one form", param=second)
    for name, form in forms.items():
        try:
            return Structured(**form)
        except ValueError as error:
            raise ApiError(400, str(error).replace("structured", name, 1), param=name) from None
    return None


def _asked_forms(asked: Generation) -> Any:
    format = asked.response_format
    if format and format.type == "json_schema":
        if format.json_schema is None:
            raise ApiError(400, "response_format has no json_schema", param="response_format")
        yield "response_format", {"json": format.json_schema.schema or {}}
    elif format and format.type == "json_object":
        yield "response_format", {"json": ANY_OBJECT}
    if asked.structured_outputs is not None:
        given = msgspec.structs.asdict(asked.structured_outputs)
        if given.pop("json_object"):
            given["json"] = ANY_OBJECT
        yield "structured_outputs", given
    for name, kind in GUIDED.items():
        if (value := getattr(asked, name)) is not None:
            yield name, {kind: value}


@dataclass(frozen=True)
class Turn:
    """The next turn of a conversation: which tools are offered, and how its answer is read."""

    tools: tuple[Tool, ...]
    calls: ToolFormat | None
    """How they are called; None if none is offered."""
    form: Structured | None
    most_calls: int | None
    thinks: bool
    thinking: bool = False
    """The prompt opens thoughts."""

    @classmethod
    def of(cls, asked: ChatRequest, tokenizer: Tokenizer | None) -> Turn:
        tools = _offered(asked)
        calls = tool_format(tokenizer) if tools else None
        form = asked_form(asked)
        several = asked.parallel_tool_calls is not False
        if (called := _must_call(asked, tools)) and calls and tokenizer:
            if form is not None:
                raise ApiError(400, "an answer that must call a tool has no other form", param="tool_choice")
            several = several and asked.tool_choice == "required"

            form = _calling(called, calls, tokenizer, several=several)
        thinks = tokenizer is not None and tokenizer.thinks
        return cls(tools, calls, form, None if several else 1, thinks)

    def after(self, prompt: str) -> Turn:
        """The same, once it is known how the prompt ends."""
        return replace(self, thinking=self.thinks and prompt.rstrip().endswith(THINK))

    def formed(self, params: SamplingParams) -> SamplingParams:
        """Thoughts come before the form."""
        if self.form is None or not self.thinking:
            return params
        return replace(params, structured=replace(self.form, after=THOUGHT))

    def reader(self) -> AnswerReader | None:
        """None if an answer can only be text."""
        if self.calls is None and not self.thinks:
            return None
        return AnswerReader(
            thinks=self.thinks,
            thinking=self.thinking,
            calls=self.calls,
            tools=self.tools,
            most=self.most_calls,
        )

    @property
    def shown(self) -> tuple[str, ...]:
        """Special tokens that the reader must see."""
        thoughts = (THINK, THOUGHT) if self.thinks else ()
        return (*thoughts, *(self.calls.marks if self.calls else ()))


def tool_format(tokenizer: Tokenizer | None) -> ToolFormat:
    if tokenizer is None or tokenizer.tool_format is None:
        unknown = "the model's chat template takes none, or has calls written in a way that is not known here"
        raise ApiError(400, f"tools: {unknown}", param="tools")
    return tokenizer.tool_format


def _calling(tools: Sequence[Tool], calls: ToolFormat, tokenizer: Tokenizer, *, several: bool) -> Structured:
    """The form of an answer that calls one of these at least."""

    def mark(text: str) -> str:
        token = tokenizer.special_id(text)
        return msgspec.json.encode(text).decode() if token is None else f"<[{token}]>"

    try:
        return Structured(grammar=calls.grammar(tools, mark, several=several))
    except RecursionError:
        raise ApiError(400, "tools: a schema is nested too deeply", param="tools") from None
    except ValueError as error:
        raise ApiError(400, str(error).replace("structured.grammar", "tools", 1), param="tools") from None


def template_variables(asked: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """What a template reads beside messages."""
    variables = dict(asked.chat_template_kwargs or {})
    if names := sorted(RESERVED & variables.keys()):
        wrong = f"chat_template_kwargs is not supported: {names[0]} is not for it to set"
        raise ApiError(400, wrong, param="chat_template_kwargs")
    if asked.tools and getattr(asked, "tool_choice", None) != "none":
        variables["tools"] = msgspec.to_builtins(asked.tools)
    return variables


def _offered(asked: ChatRequest) -> tuple[Tool, ...]:
    if asked.tool_choice == "none":
        return ()
    functions = [tool.function for tool in asked.tools or ()]
    names = [function.name for function in functions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ApiError(400, f"tools: {twice!r} is there twice", param="tools")
    return tuple(Tool(function.name, function.parameters or ANY_OBJECT) for function in functions)


def _must_call(asked: ChatRequest, tools: Sequence[Tool]) -> list[Tool]:
    """Those of which one at least must be called."""
    choice = asked.tool_choice
    if choice in (None, "none", "auto"):
        return []
    if not tools:
        raise ApiError(400, "tool_choice asks for a call, and there are no tools", param="tool_choice")
    if not isinstance(choice, NamedTool):
        return list(tools)
    named = [tool for tool in tools if tool.name == choice.function.name]
    if not named:
        raise ApiError(400, f"tool_choice: there is no tool {choice.function.name!r}", param="tool_choice")
    return named
