"""EAGLE with several guesses at a time: a tree of drafts, grown level by level where it is most likely."""

from __future__ import annotations

import torch

from ..layers.batch import Build
from ..layers.eagle import EagleHead
from ..models.base import CausalLM
from ..ops.step import Tree
from .drafter import Draft, VerifiedStep
from .eagle import Eagle


class EagleTree(Eagle):
    """`nodes` drafts on `levels` levels, none of them wider than `topk`."""

    branches = True

    def __init__(
        self,
        build: Build,
        head: EagleHead,
        model: CausalLM,
        reads: tuple[int, ...],
        *,
        nodes: int,
        levels: int,
        topk: int,
    ) -> None:
        super().__init__(nodes, build, head, model, reads)
        self.sizes, self.topk = level_sizes(nodes, levels, topk), topk

    def propose(self, step: VerifiedStep) -> Draft:
        tokens, parents = step.last[:, None], torch.zeros_like(step.last)[:, None]
        scores = torch.zeros(tokens.shape, device=tokens.device)
        # of each node, the vector of the token before it
        vectors = self.head.mixed(self.previous.of_last(step.ahead(0, step.last)))[:, None]
        first = 0
        for size in self.sizes:
            batch = step.window(tokens, Tree.of(parents))
            found = self.head(self._embed(tokens.flatten()), vectors.flatten(0, 1), batch)
            found = found.unflatten(0, tokens.shape)
            logits = self.head.logits(found[:, first:].flatten(0, 1)).float().log_softmax(-1)
            best = logits.unflatten(0, scores.shape).topk(self.topk, -1)
            scores, place = (scores[..., None] + best.values).flatten(1).topk(size, -1)
            above = first + place // self.topk
            first = tokens.shape[1]
            tokens = torch.cat((tokens, best.indices.flatten(1).gather(1, place)), 1)
            parents = torch.cat((parents, above), 1)
            wide = above[..., None].expand(-1, -1, found.shape[-1])
            vectors = torch.cat((vectors, found.gather(1, wide)), 1)
        drafts = tokens[:, 1:]
        return Draft(drafts, torch.full_like(drafts[:, 0], self.depth), parents[:, 1:])


def level_sizes(nodes: int, levels: int, topk: int) -> list[int]:
    """As wide as can be at first, with a node left for every level."""
    sizes: list[int] = []
    for later in range(levels - 1, -1, -1):
        sizes.append(min(topk, nodes - sum(sizes) - later))
    return sizes
