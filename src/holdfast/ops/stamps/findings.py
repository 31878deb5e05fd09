"""What the checks' kernels find, as numbers in one buffer: how many findings there are, then the fields of each."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

CURSOR, TOKEN, READ, WRITE, PUBLISH, ACCEPT = range(6)
WHAT = ("cursor", "read", "read", "write", "publish", "accept")
MOST = 64
"""Findings of a step that are kept."""
NO_STATE, NO_STAMP = -1, -2


class Found(NamedTuple):
    what: int
    state: int
    row: int
    place: int
    expected: int
    stamp: int


FIELDS = len(Found._fields)


SIZE = 1 + MOST * FIELDS
"""Of the buffer. Its first element is to be 0 before a step."""


def read(found: Tensor) -> list[Found]:
    """Of a buffer on the host."""
    kept = min(int(found[0]), MOST)
    return [Found(*fields) for fields in found[1:].view(MOST, FIELDS)[:kept].tolist()]
