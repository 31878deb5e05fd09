"""What clients may ask, and what is made of it. Whatever is not understood is refused by name."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..params import MAX_LOGPROBS, SamplingParams
from .errors import ApiError

LARGEST = 2**31 - 1
MAX_STOPS, MAX_STOP_LEN = 64, 1000


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = False


class JsonSchema(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Generation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of generation share. `null` is the same as leaving a parameter out."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int | None = None
    """Lower runs first."""
    return_token_ids: bool | None = False
    # the form of the answer; forms.py says what is made of it
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # for the client's own books: they change no answer
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[Any]
    """A text, token ids, or a list of either."""
    echo: bool | None = False
    logprobs: int | None = None
    add_special_tokens: bool | None = True
    suffix: str | None = None
    best_of: int | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class FunctionName(msgspec.Struct):
    name: str


class Function(msgspec.Struct, omit_defaults=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct):
    function: Function
    type: Literal["function"] = "function"


class NamedTool(msgspec.Struct):
    function: FunctionName
    type: Literal["function"] = "function"


class ChatRequest(Generation, kw_only=True, forbid_unknown_fields=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """The template's own switches, such as enable_thinking."""
    add_generation_prompt: bool | None = True
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[ToolDefinition] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = True
    add_generation_prompt: bool | None = True


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = False


ELSEWHERE = {
    "guided_decoding_backend": "forms are compiled by llguidance alone",
    "guided_whitespace_pattern": "a schema's own x-guidance says what may stand between the parts of JSON",
    "structural_tag": "give a grammar",
    "regex": "it is called guided_regex",
    "ebnf": "it is called guided_grammar",
    "json_schema": "it is called guided_json, or stands in response_format",
    "functions": "they are called tools",
    "function_call": "it is called tool_choice",
    "separate_reasoning": "thoughts always stand apart, in reasoning_content",
    "reasoning_effort": "chat_template_kwargs has the switches of the model's template",
}
"""Parameters of other servers, and what to do without them."""

Asked = TypeVar("Asked", bound=msgspec.Struct)

SAMPLING = (
    *("min_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "logit_bias"),
    *("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Named as in SamplingParams."""


def decode(kind: type[Asked], body: bytes) -> Asked:
    """Raises ApiError 400 with a sentence and, where one is at fault, the parameter's name."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(kind, str(error)) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON in UTF-8: {error}") from None


def _explained(kind: type[msgspec.Struct], said: str) -> ApiError:
    if found := re.search(r"unknown field `([^`]*)`", said):
        name = found[1]
        if name in ELSEWHERE:
            return ApiError(400, f"{name} is not supported: {ELSEWHERE[name]}", param=name)
        return ApiError(
            400, f"there is no parameter {name!r}{nearest(name, kind.__struct_fields__)}", param=name
        )
    if found := re.search(r"missing required field `([^`]*)`", said):
        return ApiError(400, f"{found[1]} is missing", param=found[1])
    what, _, where = said.partition(" - at `")
    path = where.rstrip("`").removeprefix("$").removeprefix(".")
    what = what.replace("`", "").replace(" | ", " or ").replace("Expected", "must be").replace("null", "null")
    return ApiError(400, f"{path or 'the body'} {what}", param=re.split(r"[.\[]", path)[0] or None)


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a sentence that says that there is no such name."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def sampling_params(asked: Generation, advised: SamplingParams, **others: Any) -> SamplingParams:
    """What was asked, else what the model's authors advise."""
    given = {name: value for name in SAMPLING if (value := getattr(asked, name)) is not None}
    if abs(asked.priority or 0) > LARGEST:
        raise ApiError(400, f"priority must be between -{LARGEST} and {LARGEST}", param="priority")
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if len(stops) > MAX_STOPS or any(len(text) > MAX_STOP_LEN for text in stops):
        most = (
            f"at most {MAX_STOPS} strings of at most {MAX_STOP_LEN} characters"  # searched for at every token
        )
        raise ApiError(400, f"stop may have {most}", param="stop")
    if asked.stream_options and not asked.stream:
        raise ApiError(400, "stream_options is only for stream=true", param="stream_options")
    try:
        return replace(
            advised, **given, **{name: value for name, value in others.items() if value is not None}
        )
    except ValueError as error:
        raise ApiError(400, str(error), param=re.split(r"[=\[ ]", str(error))[0]) from None


def completion_prompts(asked: CompletionRequest) -> list[str | list[int]]:
    """One or several, each a text or token ids."""
    if isinstance(asked.prompt, str):
        return [asked.prompt]
    if asked.prompt and all(isinstance(each, str) for each in asked.prompt):
        return list(asked.prompt)
    if asked.prompt and all(_is_token(each) for each in asked.prompt):
        return [list(asked.prompt)]
    if asked.prompt and all(isinstance(each, list) and all(map(_is_token, each)) for each in asked.prompt):
        return list(asked.prompt)
    raise ApiError(400, "prompt must be a text, a list of token ids, or a list of either", param="prompt")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def refuse_unsupported(asked: CompletionRequest) -> None:
    """What would change the answer, and cannot."""
    if asked.suffix:
        raise ApiError(400, "suffix is not supported: texts are only continued", param="suffix")
    if asked.best_of not in (None, asked.n or 1):
        instead = "all answers are given; ask for n of them"
        raise ApiError(400, f"best_of is not supported: {instead}", param="best_of")


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """As templates read them. Parts of a content are joined: only text is possible."""
    if not messages:
        raise ApiError(400, "messages is empty; give at least one", param="messages")
    plain = []
    for message in messages:
        told = msgspec.to_builtins(message)
        if isinstance(message.content, list):
            if other := next((part.type for part in message.content if part.type != "text"), None):
                raise ApiError(400, f"messages: content of type {other!r} is not supported", param="messages")
            told["content"] = "".join(part.text or "" for part in message.content)
        if message.tool_calls:
            told.setdefault("content", "")  # of an answer that only calls; templates join it to other texts
        for call in told.get("tool_calls", ()):
            _read_arguments(call)
        plain.append(told)
    return plain


def _read_arguments(call: dict[str, Any]) -> None:
    """Clients send arguments as the text that they were given; templates write them anew."""
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            raise ApiError(400, "messages: arguments of a tool call must be JSON", param="messages") from None


def chat_logprobs(asked: ChatRequest) -> int | None:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    if not 0 <= (asked.top_logprobs or 0) <= MAX_LOGPROBS:
        raise ApiError(400, f"top_logprobs must be between 0 and {MAX_LOGPROBS}", param="top_logprobs")
    return (asked.top_logprobs or 0) if asked.logprobs else None
