"""The transformers library as a second opinion, where it is installed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..params import MAX_LOGPROBS
from ..request import TokenLogprob
from .rules import Scored


class Unavailable(Exception):
    """The library cannot be asked about this model, and why."""


class Library:
    """The model as transformers computes it, in float32, with weights rounded as the engine's are."""

    def __init__(self, directory: Path, dtype: str) -> None:
        try:
            import transformers
        except ImportError:
            raise Unavailable("not installed") from None
        name = json.loads((directory / "config.json").read_text(encoding="utf-8"))["architectures"][0]
        kind = getattr(transformers, name, None)
        if kind is None:
            raise Unavailable(f"transformers {transformers.__version__} has no {name}")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        options = {"dtype": getattr(torch, dtype), "attn_implementation": "eager", "local_files_only": True}
        self._model: Any = kind.from_pretrained(directory, **options).float().eval()

    @torch.inference_mode()
    def read(self, prompt: Sequence[int], answer: Sequence[int]) -> Scored:
        """What it would have said, and how surely, at every token of the answer: one pass over the whole text."""
        logits = self._model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0]
        return _best(logits[len(prompt) - 1 : -1].float().log_softmax(-1))


def _best(logprobs: Tensor) -> Scored:
    values, ids = logprobs.topk(min(MAX_LOGPROBS, logprobs.shape[-1]), -1)
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [TokenLogprob(i[0], v[0], tuple(zip(i, v, strict=True))) for i, v in rows]
