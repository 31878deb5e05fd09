"""Prompts become requests: all that needs the tokenizer and no engine, and so no torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from .answer import one_for_each_answer
from .defaults import advised_params
from .prompts import Message, Prompt, is_conversation, token_ids
from .request import Rejected, Request, SamplingParams
from .text import Tokenizer, eos_token_ids


class Intake:
    """Not for two threads at once, but for `tokens`."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        has_tokenizer = (directory / "tokenizer.json").is_file()
        self.tokenizer = Tokenizer.from_dir(directory) if has_tokenizer else None
        self._eos = self.tokenizer.eos_token_ids if self.tokenizer else eos_token_ids(directory)
        self._seeds = random.Random(seed)
        self._taken = 0

    def default_params(self) -> SamplingParams:
        return advised_params(self.directory)

    def tokens(self, prompt: Prompt | Sequence[Message]) -> Sequence[int]:
        messages = is_conversation(prompt) and len(prompt) > 0
        if not messages and not isinstance(prompt, str):
            return token_ids(prompt)
        if self.tokenizer is None:
            raise ValueError("the model's directory has no tokenizer.json, so prompts must be token ids")
        return self.tokenizer.apply_chat(prompt) if messages else self.tokenizer.encode(prompt)  # type: ignore[arg-type]

    def requests(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams, priority: int = 0
    ) -> list[Request]:
        """One for each answer that the parameters ask for. Raises Rejected if there can be none."""
        self._taken += 1
        request_id = f"{self._taken}"
        try:
            tokens = self.tokens(prompt)
            if params.stop and self.tokenizer is None:
                raise ValueError("the model's directory has no tokenizer.json: use stop_token_ids, not stop")
        except ValueError as error:
            raise Rejected(request_id, str(error)) from error
        request = Request(
            id=request_id,
            prompt=tuple(tokens),
            params=params,
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            eos_token_ids=self._eos,
            priority=priority,
        )
        return one_for_each_answer(request)
