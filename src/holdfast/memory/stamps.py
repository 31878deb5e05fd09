"""Stamps: one number beside every place in the pools that says what lies there.

The stamp of a sequence's first p tokens is p in the low bits and a hash of the tokens in the others:

    stamp(0) = 0        stamp(p + 1) = stamp(p) + token_p * key_p + 1        key_p = odd << POSITION_BITS

A checkpoint after p tokens, the ring's input or entry of token p - 1 and its keys and values all bear stamp(p). In a
window that branches, a node bears the stamp of the text that leads to it, wherever it lies.
So a place can be checked for any row that claims it: whoever has the same tokens expects the same stamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops.transfer import to_device

POSITION_BITS = 24
_POSITION = (1 << POSITION_BITS) - 1
VOID = -1
"""Nobody's: the place was freed, or never written."""

Name = tuple[str, str]
"""Of a layer, and of its state."""


def position_of(stamp: int) -> int:
    return VOID if stamp == VOID else stamp & _POSITION


class Chains:
    """What each row's stamps must be, by place: from the tokens the host sent, and those the device chose. A place is
    a position, but for the nodes of a tree, which lie side by side until a path of them is accepted."""

    def __init__(self, rows: int, positions: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        odd = torch.randint(1 << 38, (positions,), generator=generator) * 2 + 1
        self.keys = (odd << POSITION_BITS).to(device)
        self.table = torch.zeros(rows + 1, positions + 1, dtype=torch.int64, device=device)

    def start(self, row: int, tokens: tuple[int, ...]) -> None:
        known = to_device(tokens, self.table.device)
        self.table[row, 1 : 1 + len(tokens)] = (known * self.keys[: len(tokens)] + 1).cumsum(0)

    def extend(self, rows: Tensor, place: Tensor, tokens: Tensor, above: Tensor | None = None) -> None:
        """`tokens` [N] now stand at `place`, after those of the first `above` places; by default, of all."""
        self.table[rows, place + 1] = self.after(self.at(rows, place if above is None else above), tokens)

    def replace(self, rows: Tensor, position: Tensor, stamps: Tensor, where: Tensor | None = None) -> None:
        """Those of the rows' first `position` tokens, everywhere or where it is to be done [N]."""
        position = position.clamp(max=self.table.shape[1] - 1)
        if where is not None:
            stamps = torch.where(where, stamps, self.table[rows, position])
        self.table[rows, position] = stamps

    def at(self, rows: Tensor, position: Tensor) -> Tensor:
        """Stamps of the rows' first `position` tokens. Of none it is 0, which no place bears."""
        return self.table[rows, position.clamp(0, self.table.shape[1] - 1)]

    def differ(self, rows: Tensor, place: Tensor, tokens: Tensor, above: Tensor | None = None) -> Tensor:
        """Which of these are not the tokens that stand there?"""
        before = self.at(rows, place if above is None else above)
        return self.at(rows, place + 1) != self.after(before, tokens)

    def after(self, stamps: Tensor, tokens: Tensor) -> Tensor:
        """Of texts with these stamps, when one more token has come to each."""
        position = (stamps & _POSITION).clamp(max=len(self.keys) - 1)
        return torch.addcmul(stamps, tokens, self.keys[position]).add_(1)


@dataclass(frozen=True)
class Stamps:
    """Of all states whose places are numbered alike: [states, places]."""

    held: Tensor
    names: tuple[Name, ...]

    @staticmethod
    def void(names: Iterable[Name], places: int, device: torch.device) -> Stamps:
        listed = tuple(names)
        return Stamps(torch.full((len(listed), places), VOID, dtype=torch.int64, device=device), listed)

    @property
    def all(self) -> Sequence[int]:
        return range(len(self.names))

    def read(self, states: Sequence[int], places: Tensor) -> Tensor:
        """[states, n]"""
        chosen = self.held if len(states) == len(self.names) else self.held[list(states)]
        return chosen.index_select(1, places)

    def write(self, states: Sequence[int], places: Tensor, stamps: Tensor) -> None:
        if len(states) == len(self.names):
            self.held[:, places] = stamps
        else:
            self.held[torch.tensor(states, device=places.device)[:, None], places] = stamps

    def clear(self, blocks: Tensor | int, size: int) -> None:
        """Whole rows, or pages, of `size` places."""
        self.held.unflatten(1, (-1, size))[:, blocks] = VOID
