"""Log-probabilities as the device has them, and as the host reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.backend import Ops
from ..request import TokenLogprob


@dataclass(frozen=True)
class Logprobs:
    """tokens [N], their log-probabilities [N], and ids and values [N, k] of the k most likely, best first"""

    tokens: Tensor
    chosen: Tensor
    ids: Tensor
    values: Tensor

    def read(self) -> list[TokenLogprob]:
        """Waits for the device."""
        best = [
            tuple(zip(ids, values, strict=True))
            for ids, values in zip(self.ids.tolist(), self.values.tolist(), strict=True)
        ]
        return list(map(TokenLogprob, self.tokens.tolist(), self.chosen.tolist(), best))


def reordered(logprobs: Logprobs, order: Tensor) -> Logprobs:
    return Logprobs(
        logprobs.tokens[order], logprobs.chosen[order], logprobs.ids[order], logprobs.values[order]
    )


def score(ops: Ops, logits: Tensor, tokens: Tensor, most: int) -> Logprobs:
    """Of the model's own distribution, which `logits` must still be."""
    logprobs = ops.log_softmax(logits)
    best = logprobs.topk(min(most, logprobs.shape[-1]), -1)
    return Logprobs(tokens, logprobs.gather(-1, tokens[:, None])[:, 0], best.indices, best.values)


def join(blocks: list[Logprobs]) -> Logprobs:
    return Logprobs(
        tokens=torch.cat([block.tokens for block in blocks]),
        chosen=torch.cat([block.chosen for block in blocks]),
        ids=torch.cat([block.ids for block in blocks]),
        values=torch.cat([block.values for block in blocks]),
    )
