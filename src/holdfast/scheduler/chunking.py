"""How much of a request one step takes."""

from __future__ import annotations

from ..config import CHUNK, Limits


def cut_align(limits: Limits) -> int:
    """Where a long run is best cut: a page ends there, and the chunk form takes no partial block."""
    return max(CHUNK, limits.page_size)


def chunk_len(done: int, target: int, budget: int, align: int) -> int:
    """Tokens to take now. A cut before the target falls on a multiple of `align` if one is within reach."""
    end = done + min(target - done, budget)
    aligned = end // align * align
    return (aligned if end < target and aligned > done else end) - done
