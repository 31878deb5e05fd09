"""What becomes of query and key heads between their projection and attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadNorms:
    """A root-mean-square norm of every query and every key head; weights [head_dim]."""

    queries: Tensor
    keys: Tensor
    eps: float
    zero_centred: bool = False


@dataclass(frozen=True)
class Turn:
    """Rotary positions: cos, sin [positions, half]"""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class Heads:
    scale: float
    """Of the scores."""
    norms: HeadNorms | None = None
    turn: Turn | None = None
