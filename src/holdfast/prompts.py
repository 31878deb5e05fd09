"""What callers hand in as prompts, sorted out before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Prompt = str | Sequence[int]

KINDS = "a string or a list of token ids"


def as_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list of them. Arrays and tensors will do for lists."""
    several = _plain(prompts)
    if isinstance(several, str):
        return [several]
    if isinstance(several, (bytes, Mapping)) or not isinstance(several, Iterable):
        raise TypeError(f"prompts must be {KINDS}, or a list of such prompts, not {_described(prompts)}")
    several = list(several)
    return [several] if several and not isinstance(several[0], (str, Iterable)) else several


def as_conversations(messages: Any) -> list[Sequence[Message]]:
    """One conversation or several, as a list of them."""
    if isinstance(messages, Sequence) and not isinstance(messages, str):
        several = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        if all(is_conversation(conversation) for conversation in several):
            return several
    raise TypeError(
        "chat takes a list of messages {role, content}, or a list of such lists; text and token ids are "
        "for generate"
    )


def is_conversation(prompt: Any) -> bool:
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and all(isinstance(message, Mapping) for message in prompt)
    )


def token_ids(prompt: Any) -> list[int]:
    """Raises ValueError, and names the one at fault, unless these are whole numbers."""
    tokens = _plain(prompt)
    if isinstance(tokens, (bytes, Mapping)) or not isinstance(tokens, Iterable):
        raise ValueError(f"a prompt is {KINDS}, not {_described(prompt)}")
    return [_token_id(token, place) for place, token in enumerate(tokens)]


def _token_id(token: Any, place: int) -> int:
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise ValueError(
            f"{_described(token)} at place {place} of the prompt is no token id; a prompt is {KINDS}"
        )
    return operator.index(token)


def _plain(value: Any) -> Any:
    """A numpy array or a tensor as nested lists."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "shape") else value


def _described(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:40] + '...'}"
