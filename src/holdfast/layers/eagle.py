"""EAGLE's heads: one layer that reads a token beside what the model, or the head itself, knew before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ..ops.rope.reference import RotarySpec
from .attention import Attention, AttentionShape
from .batch import Batch, Build
from .delta_net import DeltaNet, DeltaNetShape
from .linear import Linear, RMSNorm, Stream, norms_beside
from .mlp import GatedMLP
from .rotary import Rotary


@dataclass(frozen=True)
class EagleShape:
    hidden: int
    inner: int
    eps: float
    attention: AttentionShape
    rotary: RotarySpec
    mlp_bias: bool = False
    delta_net: DeltaNetShape | None = None
    """In the place of attention."""


class EagleHead(nn.Module):
    """x + mixer(read), then x + mlp(norm(x)); what x and `read` are, the two formats say."""

    def __init__(self, build: Build, name: str, shape: EagleShape, *, inputs: int) -> None:
        """inputs: so wide is what its mixer reads"""
        super().__init__()
        self.hidden = shape.hidden
        self.mixer: Attention | DeltaNet
        if shape.delta_net is None:
            positions = Rotary(shape.rotary, shape.attention.head_dim, build.max_positions)
            self.mixer = Attention(build, name, replace(shape.attention, inputs=inputs), positions)
        else:
            self.mixer = DeltaNet(build, name, shape.delta_net)
        self.mlp_norm = RMSNorm(build, shape.hidden, shape.eps)
        self.mlp = GatedMLP(build, shape.hidden, shape.inner, bias=shape.mlp_bias)

    known_width: int
    """Numbers that are kept of each of the model's features."""

    def known(self, hidden: Tensor, layers: Tensor) -> Tensor:
        """What is kept of the model's features: [tokens, known_width]"""
        raise NotImplementedError

    def mixed(self, known: Tensor) -> Tensor:
        """What the head reads beside the next token, of what was kept: [tokens, hidden]"""
        return known

    def entry(self, embedding: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """x, and what the mixer reads."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """[tokens, vocabulary of the model]"""
        raise NotImplementedError

    def forward(self, embedding: Tensor, previous: Tensor, batch: Batch) -> Tensor:
        """What it reads beside the next token, if that is a guess of its own: [tokens, hidden]"""
        x, read = self.entry(embedding, previous)
        x, normed = self.mlp_norm.of_stream(Stream(x, self.mixer(read, batch)))
        return x + self.mlp(normed)

    def keep(self, embedding: Tensor, previous: Tensor, batch: Batch) -> None:
        """Of tokens after which nothing is to be guessed: what the mixer keeps of them is all that is needed."""
        self.mixer.keep(self.entry(embedding, previous)[1], batch)


class EagleOneHead(EagleHead):
    """Foretells the vector that the model's own head reads: x = fc([embedding, previous])"""

    def __init__(
        self, build: Build, name: str, shape: EagleShape, *, bias: bool, logits: Callable[[Tensor], Tensor]
    ) -> None:
        """logits: by the model's own head"""
        super().__init__(build, name, shape, inputs=shape.hidden)
        self.known_width = shape.hidden
        self.fc = Linear(build, 2 * shape.hidden, shape.hidden, bias=bias)
        self._logits = logits

    def known(self, hidden: Tensor, layers: Tensor) -> Tensor:
        return hidden

    def entry(self, embedding: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        x = self.fc(torch.cat((embedding, previous), -1))
        return x, x

    def logits(self, hidden: Tensor) -> Tensor:
        return self._logits(hidden)


class EagleThreeHead(EagleHead):
    """Reads several layers of the model, and has a head of its own, perhaps for a part of the vocabulary only."""

    d2t: Tensor | None

    def __init__(
        self, build: Build, name: str, shape: EagleShape, *, layers: int, vocab: int, draft_vocab: int
    ) -> None:
        super().__init__(build, name, shape, inputs=2 * shape.hidden)
        self.vocab, self.known_width = vocab, layers * shape.hidden
        self.fc = Linear(build, self.known_width, shape.hidden)
        self.embedding_norm, self.hidden_norm, self.norm = (
            RMSNorm(build, shape.hidden, shape.eps) for _ in range(3)
        )
        self.lm_head = Linear(build, shape.hidden, draft_vocab)
        offsets = None if draft_vocab == vocab else torch.empty(draft_vocab, dtype=torch.int64)
        self.register_buffer("d2t", offsets)

    def known(self, hidden: Tensor, layers: Tensor) -> Tensor:
        return layers.flatten(1)

    def mixed(self, known: Tensor) -> Tensor:
        return self.fc(known)

    def entry(self, embedding: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        return previous, norms_beside((self.embedding_norm, embedding), (self.hidden_norm, previous))

    def logits(self, hidden: Tensor) -> Tensor:
        found = self.lm_head(self.norm(hidden))
        if self._drafted is None:
            return found
        # in the model's own numbering, for noise goes by that
        return found.new_full((len(found), self.vocab), -torch.inf).index_copy_(1, self._drafted, found)

    @cached_property
    def _drafted(self) -> Tensor | None:
        return self.drafted()

    def drafted(self) -> Tensor | None:
        """[draft_vocab]: the tokens that it can draft; None: all."""
        if self.d2t is None:
            return None
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)
