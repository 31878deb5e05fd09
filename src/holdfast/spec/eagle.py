"""EAGLE: a head trained for the model guesses the next token, and then again from what it made of its own guess.

As with MTP it reads token i beside a vector of token i - 1. For EAGLE that is the model's last hidden vector, for
EAGLE-3 a mixture of what several of its layers left, which is mixed when it is read: in steps without drafts nobody
does. Where the token is a guess, it is the head's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import ConfigError
from ..layers.batch import Batch, Build
from ..layers.eagle import EagleHead, EagleThreeHead
from ..models.base import CausalLM, declared
from ..ops.places import ToKeep
from .drafter import PATIENCE, Draft, Drafter, Features, VerifiedStep, all_meant
from .mtp import Previous


class Eagle(Drafter):
    def __init__(
        self, depth: int, build: Build, head: EagleHead, model: CausalLM, reads: tuple[int, ...]
    ) -> None:
        super().__init__(depth)
        self.head, self.reads = head, reads
        self.patience = 0 if self.branches else PATIENCE
        self.trails = bool(declared(head, "state_spec"))
        self.previous = Previous(build, "previous", head.known_width, longer=self.patience)
        self._embed = model.embed.forward  # the model's: not to be loaded or counted again
        self.name_layers()

    @property
    def trained(self) -> tuple[nn.Module, ...]:
        return (self.head,)

    def check(self) -> None:
        check_drafted(self.head)

    def absorb(self, batch: Batch, features: Features) -> None:
        known = self.head.known(features.hidden, features.layers)
        self._keep(self.previous(known, batch), batch)

    def remember(self, batch: Batch, features: Features) -> ToKeep:
        return self.previous.to_keep(self.head.known(features.hidden, features.layers), batch)

    def catch_up(self, batch: Batch) -> None:
        self._keep(self.previous.kept(batch), batch)

    def _keep(self, known: Tensor, batch: Batch) -> None:
        self.head.keep(self._embed(batch.tokens), self.head.mixed(known), batch)

    def propose(self, step: VerifiedStep) -> Draft:
        token, drafts = step.last, []
        hidden: Tensor | None = None
        for by in range(step.depth):
            batch, embedding = step.ahead(by, token), self._embed(token)
            if hidden is None:
                hidden = self.head.mixed(self.previous.of_last(batch))
            hidden = self.head(embedding, hidden, batch)
            token = step.choose(self.head.logits(hidden), by + 1)
            drafts.append(token)
        return all_meant(torch.stack(drafts, 1))


def check_drafted(head: EagleHead) -> None:
    """The tokens that its files say it can draft are the model's."""
    if not isinstance(head, EagleThreeHead) or (drafted := head.drafted()) is None:
        return
    if not bool(((drafted >= 0) & (drafted < head.vocab)).all()):
        raise ConfigError(
            f"speculative_config: d2t of the drafter names tokens beyond the model's {head.vocab}; "
            "it was made for another vocabulary"
        )
