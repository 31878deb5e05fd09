"""Stamps: one number beside every place in the pools that says what lies there.

The stamp of a sequence's first p tokens is p in the low bits and a hash of the tokens in the others:

    stamp(0) = 0        stamp(p + 1) = stamp(p) + token_p * key_p + 1        key_p = odd << POSITION_BITS

A checkpoint after p tokens, the ring's input or entry of token p - 1 and its keys and values all bear stamp(p).
So a place can be checked for any row that claims it: whoever has the same tokens expects the same stamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POSITION_BITS = 24
VOID = -1
"""Nobody's: the place was freed, or never written."""

Name = tuple[str, str]
"""Of a layer, and of its state."""


def position_of(stamp: int) -> int:
    return VOID if stamp == VOID else stamp & ((1 << POSITION_BITS) - 1)


class Chains:
    """What each row's stamps must be, by position: from the tokens the host sent, and those the device chose."""

    def __init__(self, rows: int, positions: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        odd = torch.randint(1 << 38, (positions,), generator=generator) * 2 + 1
        self._keys = (odd << POSITION_BITS).to(device)
        self._table = torch.zeros(rows + 1, positions + 1, dtype=torch.int64, device=device)

    def start(self, row: int, tokens: tuple[int, ...]) -> None:
        known = torch.tensor(tokens, dtype=torch.int64, device=self._table.device)
        self._table[row, 1 : 1 + len(tokens)] = (known * self._keys[: len(tokens)] + 1).cumsum(0)

    def extend(self, rows: Tensor, position: Tensor, tokens: Tensor) -> None:
        """`tokens` [N] now stand at `position`."""
        self._table[rows, position + 1] = self._after(rows, position, tokens)

    def at(self, rows: Tensor, position: Tensor) -> Tensor:
        """Stamps of the rows' first `position` tokens. Of none it is 0, which no place bears."""
        return self._table[rows, position.clamp(0, self._table.shape[1] - 1)]

    def differ(self, rows: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
        """Which of these are not the tokens that stand there?"""
        position = position.clamp(0, len(self._keys) - 1)
        return self._table[rows, position + 1] != self._after(rows, position, tokens)

    def _after(self, rows: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
        return torch.addcmul(self._table[rows, position], tokens, self._keys[position]).add_(1)


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
