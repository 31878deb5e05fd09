"""DFlash: a whole block of drafts in one pass over mask tokens, all of which see one another.

The model's own features take the place of a context: every layer keeps keys and values of them, not of tokens. So
what it keeps of a token depends on the model alone, and a block leaves nothing behind that is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..layers.batch import Batch
from ..models.base import CausalLM
from ..models.dflash import DFlashHead
from ..ops.places import ToKeep
from ..ops.step import Tree
from .drafter import PATIENCE, Draft, Drafter, Features, VerifiedStep, all_meant
from .mtp import Previous


class DFlash(Drafter):
    def __init__(
        self,
        depth: int,
        head: DFlashHead,
        model: CausalLM,
        reads: tuple[int, ...],
        mask_token: int,
        known: Previous | None = None,
    ) -> None:
        """known: what is remembered, where there are steps without drafts"""
        super().__init__(depth)
        self.known, self.patience = known, PATIENCE if known else 0
        self.head, self.reads, self.mask_token = head, reads, mask_token
        self._embed, self._logits = model.embed.forward, model.logits  # the model's own
        self.name_layers()

    @property
    def trained(self) -> tuple[nn.Module, ...]:
        return (self.head,)

    def absorb(self, batch: Batch, features: Features) -> None:
        self.head.keep(self.head.context(features.layers.flatten(1)), batch)

    def remember(self, batch: Batch, features: Features) -> ToKeep:
        assert self.known is not None
        return self.known.to_keep(features.layers.flatten(1), batch)

    def catch_up(self, batch: Batch) -> None:
        assert self.known is not None
        self.head.keep(self.head.context(self.known.kept(batch, back=0)), batch)

    def propose(self, step: VerifiedStep) -> Draft:
        """A whole block, however few of its drafts are asked for: masks see one another, and were never trained in
        smaller company."""
        last = step.last[:, None]
        block = torch.cat((last, last.new_full((len(last), self.depth), self.mask_token)), 1)
        hidden = self.head(self._embed(block.flatten()), step.window(block, all_seeing(block)))
        masks = hidden.unflatten(0, block.shape)[:, 1 : 1 + step.depth].flatten(0, 1)
        return all_meant(step.choose(self._logits(masks).unflatten(0, (-1, step.depth)), 1))


def all_seeing(block: Tensor) -> Tree:
    """Of tokens [N, T] in a row: each sees those after it as well."""
    lanes, count = block.shape
    return Tree(
        ancestors=torch.ones(lanes, count, count, dtype=torch.bool, device=block.device),
        depths=torch.arange(count, device=block.device).expand(lanes, count),
        straight=True,
    )
