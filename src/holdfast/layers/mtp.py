"""The heads that some models bring to predict the token after next (multi-token prediction)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .batch import Batch, Build
from .linear import Linear, RMSNorm, Stream, norms_beside


class MTPHead(nn.Module):
    """norm(blocks(fc([norm(embedding of token i), norm(hidden of token i - 1)])))"""

    def __init__(self, build: Build, hidden: int, eps: float, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding_norm, self.hidden_norm, self.norm = (
            RMSNorm(build, hidden, eps, zero_centred=True) for _ in range(3)
        )
        self.fc = Linear(build, 2 * hidden, hidden)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, embedding: Tensor, previous: Tensor, batch: Batch) -> Tensor:
        """Hidden states [tokens, hidden] that lead to the token after each."""
        stream = self._enter(embedding, previous)
        for block in self.blocks:
            stream = block(stream, batch)
        return self.norm.of_stream(stream)[1]

    def keep(self, embedding: Tensor, previous: Tensor, batch: Batch) -> None:
        """Of tokens after which nothing is to be guessed: of the last block, only keys and values are needed."""
        stream = self._enter(embedding, previous)
        blocks: list[Any] = list(self.blocks)
        for block in blocks[:-1]:
            stream = block(stream, batch)
        last = blocks[-1]
        last.mixer.keep(last.mixer_norm.of_stream(stream)[1], batch)

    def _enter(self, embedding: Tensor, previous: Tensor) -> Stream:
        both = norms_beside((self.embedding_norm, embedding), (self.hidden_norm, previous))
        return Stream(self.fc(both))
