"""Prompt look-up in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def look_up(
    table: Tensor, rows: Tensor, position: Tensor, *, within: int, depth: int, longest: int, shortest: int
) -> tuple[Tensor, Tensor]:
    """The longest of the suffixes that occurred before, where it did so last. If fewer than `depth` tokens followed
    it then, it overlaps the end of the sequence: what followed is repeated.

    table     [rows, positions]: tokens
    rows      [N]
    position  [N]: where the last token of each stands, no later than `within`
    returns   [N, depth] what followed, and [N] how many are meant: 0 if no suffix of `shortest` tokens occurred
    """
    tokens = table[rows, : within + 1]
    place = torch.arange(tokens.shape[1], device=tokens.device)
    matching = place < position[:, None]
    length = torch.zeros_like(matching, dtype=torch.int8)
    for back in range(longest):
        wanted = tokens.gather(1, (position - back).clamp(0, len(place) - 1)[:, None])
        matching = matching & _shifted(tokens == wanted, back)
        length = length + matching
    best = length.amax(1)
    end = torch.where(length == best[:, None], place, 0).amax(1)
    distance = (position - end).clamp(min=1)[:, None]
    following = end[:, None] + 1 + torch.arange(depth, device=tokens.device) % distance
    return tokens.gather(1, following.clamp(max=len(place) - 1)), torch.where(best >= shortest, depth, 0)


def _shifted(equal: Tensor, by: int) -> Tensor:
    """[N, L]: what is true `by` places before each."""
    return torch.cat((torch.zeros_like(equal[:, :by]), equal), 1)[:, : equal.shape[1]]
