"""Prompt look-up: what followed the last few tokens when they last occurred is what will follow them now."""

from __future__ import annotations

from ..ops.backend import Ops
from .drafter import Draft, Drafter, VerifiedStep


class NGram(Drafter):
    """Reads the table of tokens on the device, which has those that the host has not seen yet."""

    def __init__(self, depth: int, ops: Ops, *, longest: int, shortest: int) -> None:
        super().__init__(depth)
        self._ops, self.longest, self.shortest = ops, longest, shortest

    def propose(self, step: VerifiedStep) -> Draft:
        sizes = {"depth": step.depth, "longest": self.longest, "shortest": self.shortest}
        found = self._ops.look_up(step.tokens, step.rows, step.position, within=step.longest, **sizes)
        return Draft(*found)
