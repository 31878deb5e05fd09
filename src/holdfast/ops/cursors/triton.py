"""The cursors' kernels, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import kernels
from .reference import Committed, Cursors, Standing


def begin(at: Cursors, rows: Tensor, counts: Tensor, *, num_windows: int, grid: int) -> Standing:
    lanes = len(rows)
    out = torch.empty(5, lanes, dtype=torch.int64, device=rows.device)
    kernels.begin[(1,)](
        at.own_slot, at.read_slot, at.base, at.length, at.grant_slot, at.grant_line, rows, counts, out,
        lanes, num_windows, grid, BLOCK=triton.next_power_of_2(lanes), num_warps=4,
    )  # fmt: skip
    return Standing(*out)


def commit(at: Cursors, rows: Tensor, stood: Standing, accepted: Tensor) -> Committed:
    lanes = len(rows)
    out = torch.empty(3, lanes, dtype=torch.int64, device=rows.device)
    kernels.commit[(1,)](
        at.read_slot, at.base, at.length, at.grant_slot, at.grant_line, rows, accepted,
        stood.position, stood.base, stood.read_slot, stood.end_base, stood.write_slot, out,
        lanes, BLOCK=triton.next_power_of_2(lanes), num_warps=4,
    )  # fmt: skip
    position, used, missed = out
    return Committed(position=position, base=stood.end_base, used=used, missed=missed)


def absorbed(
    table: Tensor, rows: Tensor, counts: Tensor, position: Tensor, lane: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, block = len(lane), 128
    row, where, token = torch.empty(3, tokens, dtype=torch.int64, device=rows.device)
    if tokens:
        kernels.absorbed[(triton.cdiv(tokens, block),)](
            table, rows, counts, position, lane, offset, row, where, token, tokens, table.stride(0),
            BLOCK=block, num_warps=4,
        )  # fmt: skip
    return row, where, token
