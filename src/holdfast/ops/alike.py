"""Exact mode: what a matrix product rounds to depends on more than the numbers it is given.

Where a row begins in memory, and in which order a matrix lies there, choose other instructions and with them another
order of the same sums: so does MKL on AMD's processors, where what begins on a multiple of 16 bytes is treated alike.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

ROW = 4
"""Numbers in float32. Of rows of a multiple of so many, none begins otherwise than another."""


def alike(x: Tensor) -> Tensor:
    """A copy that lies as every copy of that shape does: in order, and aligned as torch aligns what it allocates."""
    return x.clone(memory_format=torch.contiguous_format)


def rows_alike(x: Tensor) -> Tensor:
    """In order, with zeros at the end of rows where they have to begin alike; x itself, if it lies so."""
    missing = -x.shape[-1] % ROW
    return F.pad(x, (0, missing)) if missing else x.contiguous()
