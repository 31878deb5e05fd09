"""Prompt look-up's kernel, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import kernels

PLACES_AT_ONCE = 1024


def look_up(
    table: Tensor, rows: Tensor, position: Tensor, *, within: int, depth: int, longest: int, shortest: int
) -> tuple[Tensor, Tensor]:
    """As the reference's; `within` is not needed, for every lane is read as far as it goes."""
    lanes = len(rows)
    drafts = torch.empty(lanes, depth, dtype=torch.int64, device=table.device)
    count = torch.empty(lanes, dtype=torch.int64, device=table.device)
    if lanes:
        kernels.look_up[(lanes,)](
            table, rows, position, drafts, count, table.stride(0), depth,
            LONGEST=longest, SHORTEST=shortest, PLACES=triton.next_power_of_2(depth), BLOCK=PLACES_AT_ONCE,
            num_warps=4,
        )  # fmt: skip
    return drafts, count
