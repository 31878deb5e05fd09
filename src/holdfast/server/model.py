"""The one model that is served, as clients name it, and its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..intake import Intake
from ..text import Tokenizer
from .errors import ApiError


class ServedModel:
    """Texts are read in threads: a long one must not keep others waiting."""

    def __init__(self, name: str, intake: Intake) -> None:
        self.name, self.intake = name, intake

    def check_name(self, name: str | None) -> None:
        if name not in (None, "", self.name):
            wrong = f"there is no model {name!r} here; the one that is served is {self.name!r}"
            raise ApiError(404, wrong, param="model", code="model_not_found")

    async def encode(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        """Token ids are taken as they are."""
        if not isinstance(prompt, str):
            return prompt
        return await self._in_thread(Tokenizer.encode, prompt, add_special_tokens=add_special_tokens)

    async def apply_chat(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, **variables: Any
    ) -> list[int]:
        return await self._in_thread(Tokenizer.apply_chat, messages, add_generation_prompt, **variables)

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return await self._in_thread(Tokenizer.decode, tokens, skip_special_tokens=skip_special_tokens)

    async def _in_thread(self, work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.intake.tokenizer is None:
            raise ApiError(400, "the model has no tokenizer.json, so prompts must be token ids")
        try:
            return await asyncio.to_thread(work, self.intake.tokenizer, *args, **options)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
