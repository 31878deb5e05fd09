"""What transformers computes, in float32, one unpadded request at a time: one-shot prefill, then token by token."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from .models import ARCHITECTURES


@dataclass(frozen=True)
class OracleRun:
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Greedy, regardless of any end-of-text token."""
    logprobs: Tensor
    """[tokens, vocabulary] the log-probabilities that each token was chosen from."""
    prompt_logprobs: Tensor
    """[prompt, vocabulary] after each token of the prompt; the last row chose the first token."""

    @property
    def token_logprobs(self) -> tuple[float, ...]:
        """The log-probability of each chosen token."""
        return tuple(self.logprobs.amax(dim=-1).tolist())

    @property
    def margins(self) -> tuple[float, ...]:
        """How far each chosen token was ahead of the second."""
        top = self.logprobs.topk(2, dim=-1).values
        return tuple((top[:, 0] - top[:, 1]).tolist())

    def first(self, count: int) -> OracleRun:
        return OracleRun(self.prompt, self.tokens[:count], self.logprobs[:count], self.prompt_logprobs)


class Oracle:
    """Answers for the model in `directory`, whose files must not change while it is used."""

    def __init__(self, directory: Path) -> None:
        architecture = json.loads((directory / "config.json").read_text())["architectures"][0]
        _, model = ARCHITECTURES[architecture]
        options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
        self.model: Any = model.from_pretrained(directory, **options).eval()
        taken = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache_params" if "cache_params" in taken else "past_key_values"
        self._takes_positions = "position_ids" in taken
        self.num_layers: int = self.model.config.get_text_config().num_hidden_layers
        self._runs: dict[tuple[int, ...], OracleRun] = {}

    def run(self, prompt: Sequence[int], count: int = 64) -> OracleRun:
        """The prompt and `count` greedy tokens after it. A prompt that was asked before is not computed again."""
        key = tuple(prompt)
        known = self._runs.get(key)
        if known is None or len(known.tokens) < count:
            known = self._runs[key] = self._compute(key, count)
        return known.first(count)

    def _compute(self, prompt: tuple[int, ...], count: int) -> OracleRun:
        cache = self.new_cache()
        prefill = self.step(torch.tensor([prompt]), cache)[0]
        rows = [prefill[-1]]
        while len(rows) < count:
            rows.append(self.step(rows[-1].argmax().view(1, 1), cache)[0, -1])
        logprobs = torch.stack(rows)
        return OracleRun(prompt, tuple(logprobs.argmax(dim=-1).tolist()), logprobs, prefill)

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: DynamicCache) -> Tensor:
        """Absorb `tokens` [batch, n] into the cache; log-probabilities [batch, n, vocabulary] after each."""
        options: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:  # not every model counts what the cache holds, nor does every cache
            before = getattr(cache, "absorbed", 0)
            options["position_ids"] = before + torch.arange(tokens.shape[1]).expand(tokens.shape)
            cache.absorbed = before + tokens.shape[1]
        logits = self.model(tokens, use_cache=True, **options).logits
        return torch.log_softmax(logits.float(), dim=-1)

    def score(self, tokens: Sequence[int]) -> Tensor:
        """Log-probabilities [n, vocabulary] after each of `tokens`, in one pass."""
        return self.step(torch.tensor([tuple(tokens)]), self.new_cache())[0]

    def new_cache(self) -> DynamicCache:
        if self.model.config.model_type == "minimax":
            return MiniMaxCache()
        cache = DynamicCache(config=self.model.config)
        if not any(isinstance(layer, DynamicLayer) for layer in cache.layers):
            # the length is asked of an attention layer, and there is none
            cache.layers.append(DynamicLayer())
        return cache
