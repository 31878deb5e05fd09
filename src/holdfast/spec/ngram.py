"""Prompt look-up: what followed the last few tokens when they last occurred is what will follow them now."""

from __future__ import annotations

import torch
from torch import Tensor

from .drafter import Draft, Drafter, VerifiedStep


class NGram(Drafter):
    """Reads the table of tokens on the device, which has those that the host has not seen yet."""

    def __init__(self, depth: int, *, longest: int, shortest: int) -> None:
        super().__init__(depth)
        self.longest, self.shortest = longest, shortest

    def propose(self, step: VerifiedStep) -> Draft:
        """The longest of the suffixes that occurred before, where it did so last. If fewer than `step.depth` tokens
        followed it then, it overlaps the end of the sequence: what followed is repeated."""
        tokens = step.tokens[step.rows, : step.longest + 1]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        matching = place < step.position[:, None]
        length = torch.zeros_like(matching, dtype=torch.int8)
        for back in range(self.longest):
            wanted = tokens.gather(1, (step.position - back).clamp(0, len(place) - 1)[:, None])
            matching = matching & _shifted(tokens == wanted, back)
            length = length + matching
        best = length.amax(1)
        end = torch.where(length == best[:, None], place, 0).amax(1)
        distance = (step.position - end).clamp(min=1)[:, None]
        following = end[:, None] + 1 + torch.arange(step.depth, device=tokens.device) % distance
        drafts = tokens.gather(1, following.clamp(max=len(place) - 1))
        return Draft(drafts, torch.where(best >= self.shortest, step.depth, 0))


def _shifted(equal: Tensor, by: int) -> Tensor:
    """[N, L]: what is true `by` places before each."""
    return torch.cat((torch.zeros_like(equal[:, :by]), equal), 1)[:, : equal.shape[1]]
