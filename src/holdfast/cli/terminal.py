"""What the verbs share: sentences on standard error, and a model that is loaded."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from ..config import EngineConfig

if TYPE_CHECKING:
    from ..llm import LLM


def say(sentence: str) -> None:
    """Not part of an answer, so not on standard output."""
    print(sentence, file=sys.stderr, flush=True)


def fail(error: Exception | str) -> int:
    say(f"holdfast: {error}")
    return 1


def load_model(model: str | None, config: EngineConfig) -> LLM:
    # here and not above: torch takes seconds to import, and --help should not
    import torch

    from ..builtin import NOTICE
    from ..llm import LLM

    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"--device {config.device}: torch sees no CUDA device here; --device cpu always works"
        )
    if model is None:
        say(NOTICE)
    return LLM(model, **{field.name: getattr(config, field.name) for field in fields(config)})
