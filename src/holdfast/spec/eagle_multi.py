"""Several EAGLE heads, one for each draft of a window, each with keys and values of its own.

Head k reads token i beside what head k - 1 made of token i - 1, and the first what the model did. So every head has
something of every token, and head k gives draft k: the tokens from the last certain one on pass through heads that
become fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.batch import Batch, Build
from ..layers.eagle import EagleHead
from ..models.base import CausalLM
from ..ops.places import ToKeep
from .drafter import PATIENCE, Draft, Drafter, Features, VerifiedStep, all_meant
from .eagle import check_drafted
from .mtp import Previous


class EagleMulti(Drafter):
    patience, trails = PATIENCE, True

    def __init__(
        self, build: Build, heads: Sequence[EagleHead], model: CausalLM, reads: tuple[int, ...]
    ) -> None:
        super().__init__(len(heads))
        self.heads, self.reads = nn.ModuleList(heads), reads
        self.previous = nn.ModuleList(
            Previous(build, f"previous.{number}", head.hidden)
            if number
            else Previous(build, f"previous.{number}", head.known_width, longer=self.patience)
            for number, head in enumerate(heads)
        )
        self._embed = model.embed.forward  # the model's: not to be loaded or counted again
        self.name_layers()

    @property
    def trained(self) -> tuple[nn.Module, ...]:
        return tuple(self.heads)

    def check(self) -> None:
        for head in self._heads:
            check_drafted(head)

    @property
    def _heads(self) -> list[Any]:
        heads: Iterable[Any] = self.heads
        return list(heads)

    def absorb(self, batch: Batch, features: Features) -> None:
        known = self._heads[0].known(features.hidden, features.layers)
        self._keep(self._heads[0].mixed(self.previous[0](known, batch)), batch)

    def remember(self, batch: Batch, features: Features) -> ToKeep:
        first: Any = self.previous[0]
        kept: ToKeep = first.to_keep(self._heads[0].known(features.hidden, features.layers), batch)
        return kept

    def catch_up(self, batch: Batch) -> None:
        first: Any = self.previous[0]
        self._keep(self._heads[0].mixed(first.kept(batch)), batch)

    def _keep(self, before: Tensor, batch: Batch) -> None:
        """The tokens through all heads. before: what the first one reads beside them"""
        embedding, (*heads, last) = self._embed(batch.tokens), self._heads
        for head, previous in zip(heads, self.previous[1:], strict=True):
            before = previous(head(embedding, before, batch), batch)
        last.keep(embedding, before, batch)

    def propose(self, step: VerifiedStep) -> Draft:
        token, drafts = step.last, []
        before: list[Tensor] = []
        for by, head in enumerate(self._heads[: step.depth]):
            batch, embedding = step.ahead(by, token), self._embed(token)
            if not before:
                every: Iterable[Any] = self.previous[: step.depth]
                first, *others = (previous.of_last(batch) for previous in every)
                before = [self._heads[0].mixed(first), *others]
            hidden = head(embedding, before[0], batch)
            token = step.choose(head.logits(hidden), by + 1)
            drafts.append(token)
            before = [hidden, *self._pass(by + 1, embedding, before[1:], batch)][: step.depth - by - 1]
        return all_meant(torch.stack(drafts, 1))

    def _pass(self, first: int, embedding: Tensor, before: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """The token through the heads that draft later."""
        return [
            head(embedding, known, batch) for head, known in zip(self._heads[first:], before, strict=False)
        ]
