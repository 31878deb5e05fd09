"""Holdfast: a serving engine for hybrid language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import ConfigError
from .corruption import Finding, StateCorruption
from .request import (
    Completion,
    FinishReason,
    Rejected,
    RequestOutput,
    SamplingParams,
    Structured,
    TokenLogprob,
)

if TYPE_CHECKING:
    from .async_engine import AsyncLLM
    from .llm import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "ConfigError",
    "Finding",
    "FinishReason",
    "Rejected",
    "RequestOutput",
    "SamplingParams",
    "StateCorruption",
    "Structured",
    "TokenLogprob",
]


def __getattr__(name: str) -> Any:
    """These bring torch with them, which the host column and the command line's --help do without."""
    if name == "LLM":
        from .llm import LLM

        return LLM
    if name == "AsyncLLM":
        from .async_engine import AsyncLLM

        return AsyncLLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
