"""The cursors' kernels, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..places import ToKeep
from ..step import StateStep
from . import kernels
from .reference import Committed, Cursors, Standing

CHANNELS = 256
"""Of what is kept, that a program keeps."""


def begin(at: Cursors, rows: Tensor, counts: Tensor, *, num_windows: int, grid: int) -> Standing:
    lanes = len(rows)
    out = torch.empty(5, lanes, dtype=torch.int64, device=rows.device)
    kernels.begin[(1,)](
        at.own_slot, at.read_slot, at.base, at.length, at.grant_slot, at.grant_line, rows, counts, out,
        lanes, num_windows, grid, BLOCK=triton.next_power_of_2(lanes), num_warps=4,
    )  # fmt: skip
    return Standing(*out)


def commit(at: Cursors, rows: Tensor, stood: Standing, accepted: Tensor) -> Committed:
    out = _told(rows)
    kernels.commit[(1,)](
        *_moved(at, rows, stood, accepted), out,
        len(rows), BLOCK=triton.next_power_of_2(len(rows)), num_warps=4,
    )  # fmt: skip
    return _committed(stood, out)


def commit_keeping(
    at: Cursors, stood: Standing, accepted: Tensor, keep: ToKeep, step: StateStep
) -> Committed:
    x, pool, lanes, out = keep.x, keep.state, len(step.rows), _told(step.rows)
    channels = pool.ring.shape[2]
    parts = triton.cdiv(channels, CHANNELS)
    kernels.commit_keeping[(1 + lanes * parts,)](
        *_moved(at, step.rows, stood, accepted), out,
        lanes, x, pool.saved, pool.ring, step.counts, step.offsets, parts, x.stride(0), channels,
        BLOCK=triton.next_power_of_2(lanes), W=pool.saved.shape[1] + 1, CAP=pool.ring.shape[1], BC=CHANNELS,
        num_warps=4,
    )  # fmt: skip
    return _committed(stood, out)


def _moved(at: Cursors, rows: Tensor, stood: Standing, accepted: Tensor) -> tuple[Tensor, ...]:
    cursors = (at.read_slot, at.base, at.length, at.grant_slot, at.grant_line)
    return (
        *cursors, rows, accepted,
        stood.position, stood.base, stood.read_slot, stood.end_base, stood.write_slot,
    )  # fmt: skip


def _told(rows: Tensor) -> Tensor:
    return torch.empty(3, len(rows), dtype=torch.int64, device=rows.device)


def _committed(stood: Standing, out: Tensor) -> Committed:
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
