"""A model, its engine and its tokenizer: what the interfaces to them share."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answer import Answer, one_for_each_answer
from .config import EngineConfig
from .defaults import advised_params
from .engine import build_engine
from .memory.capacity import CapacityPlan
from .prompts import Message, Prompt, is_conversation, token_ids
from .request import FinishReason, Rejected, Request, SamplingParams
from .text import Tokenizer, eos_token_ids


class Service:
    """Answers are submitted, advanced step by step, and let go. Not for two threads at once."""

    def __init__(self, model: str | Path | None, options: dict[str, Any]) -> None:
        self.config = _engine_config(options)
        self.directory = find_model(model)
        self.engine = build_engine(self.directory, self.config)
        has_tokenizer = (self.directory / "tokenizer.json").is_file()
        self.tokenizer = Tokenizer.from_dir(self.directory) if has_tokenizer else None
        self._eos = self.tokenizer.eos_token_ids if self.tokenizer else eos_token_ids(self.directory)
        self._seeds = random.Random(self.config.seed)
        self._submitted = 0
        self._answers: dict[str, Answer] = {}  # those that someone waits for, by request

    @property
    def capacity(self) -> CapacityPlan:
        return self.engine.capacity

    def default_params(self) -> SamplingParams:
        return advised_params(self.directory)

    def submit(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams, *, streaming: bool = False
    ) -> list[Answer]:
        """As many answers to the prompt as the parameters ask for. Raises Rejected if it can never run."""
        requests = one_for_each_answer(self._request(prompt, params))
        for request in requests:
            self.engine.submit(request)
            self._answers[request.id] = Answer(request, self.tokenizer, streaming=streaming)
        return [self._answers[request.id] for request in requests]

    def step(self) -> list[Answer]:
        """One turn of the engine. Returns the answers that grew or ended with it."""
        changed = [self._answers[r.id] for r in self.engine.step() if r.id in self._answers]
        for answer in changed:
            if answer.advance():
                self.engine.finish(answer.request.id, FinishReason.STOP, kept=answer.length)
        return changed

    def let_go(self, answers: Sequence[Answer]) -> None:
        """Cancel what still runs; and what it held is given back before anyone asks for it."""
        for answer in answers:
            self.engine.cancel(answer.request.id)
            self._answers.pop(answer.request.id, None)
        self.engine.settle()

    def tokens(self, prompt: Prompt | Sequence[Message]) -> Sequence[int]:
        messages = is_conversation(prompt) and len(prompt) > 0
        if not messages and not isinstance(prompt, str):
            return token_ids(prompt)
        if self.tokenizer is None:
            raise ValueError("the model's directory has no tokenizer.json, so prompts must be token ids")
        return self.tokenizer.apply_chat(prompt) if messages else self.tokenizer.encode(prompt)  # type: ignore[arg-type]

    def _request(self, prompt: Prompt | Sequence[Message], params: SamplingParams) -> Request:
        self._submitted += 1
        request_id = f"{self._submitted}"
        try:
            tokens = self.tokens(prompt)
            if params.stop and self.tokenizer is None:
                raise ValueError("the model's directory has no tokenizer.json: use stop_token_ids, not stop")
        except ValueError as error:
            raise Rejected(request_id, str(error)) from error
        return Request(
            id=request_id,
            prompt=tuple(tokens),
            params=params,
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            eos_token_ids=self._eos,
        )


def _engine_config(options: dict[str, Any]) -> EngineConfig:
    known = EngineConfig.__dataclass_fields__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; the options are {', '.join(known)}")
    return EngineConfig(**options)


def find_model(model: str | Path | None) -> Path:
    """A directory; or a name as the hub has it, whose files were downloaded before."""
    if isinstance(model, (str, Path)):
        path = Path(model).expanduser()
        return path if path.exists() else _downloaded(str(model)) or path
    if model is not None:
        raise TypeError(f"model must be the path of a directory, or None for the demo model, not {model!r}")
    from .models.demo import demo_model_dir

    return demo_model_dir()


def _downloaded(name: str) -> Path | None:
    """The newest snapshot of a model in the hub client's cache. Nothing is fetched."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
    snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob("*") if (path / "config.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
