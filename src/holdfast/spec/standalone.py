"""A whole small model as drafter: any architecture, with attention and state of its own."""

from __future__ import annotations

import torch
from torch import nn

from ..layers.batch import Batch
from ..models.base import CausalLM
from .drafter import PATIENCE, Draft, Drafter, Features, VerifiedStep, all_meant


class Standalone(Drafter):
    patience, trails = PATIENCE, True

    def __init__(self, depth: int, model: CausalLM) -> None:
        super().__init__(depth)
        self.model = model
        self.name_layers()

    @property
    def trained(self) -> tuple[nn.Module, ...]:
        return (self.model,)

    def absorb(self, batch: Batch, features: Features) -> None:
        self.model(batch)

    def remember(self, batch: Batch, features: Features) -> None:
        """The tokens are all that it needs."""

    def catch_up(self, batch: Batch) -> None:
        self.model(batch)

    def propose(self, step: VerifiedStep) -> Draft:
        token, drafts = step.last, []
        for by in range(step.depth):
            logits = self.model.logits(self.model(step.ahead(by, token)))
            token = step.choose(logits, by + 1)
            drafts.append(token)
        return all_meant(torch.stack(drafts, 1))
