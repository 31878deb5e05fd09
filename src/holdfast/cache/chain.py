"""Names for content: what led to it. Equal names mean equal content, whoever computed it."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ..request import Request


@dataclass(frozen=True)
class Label:
    """The first `position` tokens, by their chain hash."""

    position: int
    chain: bytes


ROOT = Label(0, b"")


def chain_of(request: Request, page_size: int) -> list[bytes]:
    """One hash for each whole page of the tokens known, of that page and all before it. Each is made once."""
    chain, tokens = request.chain, request.tokens
    for start in range(len(chain) * page_size, len(tokens) - page_size + 1, page_size):
        page = array("q", tokens[start : start + page_size]).tobytes()
        before = chain[-1] if chain else ROOT.chain
        chain.append(hashlib.blake2b(page, digest_size=16, key=before).digest())
    return chain


def common_pages(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Whole pages that two chains share. Where they differ once, they differ for ever: so halving finds it."""
    shorter = range(min(len(one), len(other)))
    return bisect_left(shorter, True, key=lambda page: one[page] != other[page])
