"""Acceptance's kernel, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import kernels
from .reference import Drafts, Verified


def accept(
    drafts: Drafts, chosen: Tensor, table: Tensor, made: Tensor, position: Tensor, counts: Tensor
) -> Verified:
    choosing = len(drafts.lane)
    accepted, proposed = torch.empty(2, choosing, dtype=torch.int64, device=table.device)
    certain = counts.clone()
    if choosing:
        kernels.accept[(choosing,)](
            drafts.lane, drafts.drafts, drafts.first, drafts.tell, chosen, table, made, position, counts,
            accepted, proposed, certain, table.stride(0),
            PLACES=triton.next_power_of_2(drafts.most + 1), num_warps=1,
        )  # fmt: skip
    return Verified(accepted, proposed, certain)


def write_drafts(
    table: Tensor, made: Tensor, rows: Tensor, position: Tensor, drafts: Tensor, count: Tensor
) -> None:
    """As the reference's."""
    lanes, depth = drafts.shape
    if lanes:
        kernels.write_drafts[(lanes,)](
            table, made, rows, position, drafts.contiguous(), count, table.stride(0), depth,
            PLACES=triton.next_power_of_2(depth), num_warps=1,
        )  # fmt: skip
