"""A model, its engine and its tokenizer: what the interfaces to them share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answer import Answer
from .config import EngineConfig
from .engine import build_engine
from .hub import find_model
from .intake import Intake
from .memory.capacity import CapacityPlan
from .prompts import Message, Prompt
from .request import FinishReason, SamplingParams


class Service:
    """Answers are submitted, advanced step by step, and let go. Not for two threads at once."""

    def __init__(self, model: str | Path | None, options: dict[str, Any]) -> None:
        self.config = _engine_config(options)
        directory = find_model(model)
        self.engine = build_engine(directory, self.config)
        self.intake = Intake(directory, self.config.seed)
        self._answers: dict[str, Answer] = {}  # those that someone waits for, by request

    @property
    def capacity(self) -> CapacityPlan:
        return self.engine.capacity

    def submit(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams, *, streaming: bool = False
    ) -> list[Answer]:
        """As many answers to the prompt as the parameters ask for. Raises Rejected if it can never run."""
        requests = self.intake.requests(prompt, params)
        for request in requests:
            self.engine.submit(request)
            self._answers[request.id] = Answer(request, self.intake.tokenizer, streaming=streaming)
        return [self._answers[request.id] for request in requests]

    def step(self) -> list[Answer]:
        """One turn of the engine. Returns the answers that grew or ended with it."""
        changed = [answer for r in self.engine.step() if (answer := self._answers.get(r.id))]
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


def _engine_config(options: dict[str, Any]) -> EngineConfig:
    known = EngineConfig.__dataclass_fields__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; the options are {', '.join(known)}")
    return EngineConfig(**options)
