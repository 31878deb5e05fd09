"""Cursors, in Triton: one program reads those of all lanes, one moves them."""

from __future__ import annotations

import triton
import triton.language as tl

from ..causal_conv.kernels import PLAIN, keep_part


@triton.jit
def begin(
    own_slot, read_slot, base, length, grant_slot, grant_line,  # [rows]
    rows, counts, out,  # [lanes], [lanes], [5, lanes]: position, base, read_slot, end_base, write_slot
    lanes, num_windows, grid, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    inside = lane < lanes
    row = tl.load(rows + lane, mask=inside, other=0)
    start, held = tl.load(base + row), tl.load(length + row)
    position = start + held
    after_run = (position + tl.load(counts + lane, mask=inside, other=0)) // grid * grid
    end = tl.where(lane < num_windows, start + tl.where(held >= grid, grid, 0), after_run)
    end = tl.where(row > 0, end, start)
    slot = tl.load(grant_slot + row)
    granted = (slot > 0) & (tl.load(grant_line + row) == end)
    tl.store(out + lane, position, mask=inside)
    tl.store(out + lanes + lane, start, mask=inside)
    tl.store(out + 2 * lanes + lane, tl.load(read_slot + row), mask=inside)
    tl.store(out + 3 * lanes + lane, end, mask=inside)
    tl.store(out + 4 * lanes + lane, tl.where(granted, slot, tl.load(own_slot + row)), mask=inside)


@triton.jit
def commit(
    read_slot, base, length, grant_slot, grant_line,
    rows, accepted, position, began, read, end_base, write, out,  # out [3, lanes]: position, used, missed
    lanes, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    inside = lane < lanes
    row = tl.load(rows + lane, mask=inside, other=0)
    real = inside & (row > 0)
    start = tl.load(began + lane, mask=inside, other=0)
    end = tl.load(end_base + lane, mask=inside, other=0)
    at = tl.load(position + lane, mask=inside, other=0)
    at += tl.load(accepted + lane, mask=real, other=0)
    folded = end > start
    slot, line = tl.load(grant_slot + row), tl.load(grant_line + row)
    granted, passed = (slot > 0) & (line == end), (slot > 0) & (line <= end)
    tl.store(out + lane, at, mask=inside)
    tl.store(out + lanes + lane, (granted & folded).to(tl.int64), mask=inside)
    tl.store(out + 2 * lanes + lane, (passed & ~(granted & folded)).to(tl.int64), mask=inside)
    was, now = tl.load(read + lane, mask=inside, other=0), tl.load(write + lane, mask=inside, other=0)
    tl.debug_barrier()  # every lane has read its row's
    tl.store(read_slot + row, tl.where(folded, now, was), mask=real)
    tl.store(base + row, end, mask=real)
    tl.store(length + row, at - end, mask=real)
    tl.store(grant_slot + row, tl.where(passed, 0, slot), mask=real)
    tl.store(grant_line + row, tl.where(passed, 0, line), mask=real)


@triton.jit
def commit_keeping(
    read_slot, base, length, grant_slot, grant_line,
    rows, accepted, position, began, read, end_base, write, out,
    lanes, x, saved, ring, counts, offsets, parts, stride, C,
    BLOCK: tl.constexpr, W: tl.constexpr, CAP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The first program moves the cursors. Each of the others keeps a part of what a convolution keeps of a lane,
    which stands where it did when the step began."""
    program = tl.program_id(0)
    if program == 0:
        commit(
            read_slot, base, length, grant_slot, grant_line,
            rows, accepted, position, began, read, end_base, write, out, lanes, BLOCK,
        )  # fmt: skip
    else:
        lane = (program - 1) // parts
        channels = (program - 1) % parts * BC + tl.arange(0, BC)
        row, slot, to = tl.load(rows + lane), tl.load(read + lane), tl.load(write + lane)
        begin, end, at = tl.load(began + lane), tl.load(end_base + lane), tl.load(position + lane)
        first, count = tl.load(offsets + lane), tl.load(counts + lane)
        if row > 0:
            keep_part(
                x, saved, ring, to, end, row, slot, begin, at, first, count,
                stride, channels, channels < C, C, W, CAP, PLAIN,
            )  # fmt: skip


@triton.jit
def absorbed(
    table, rows, counts, position, lane_of, offset_of, row_out, position_out, token_out,
    tokens, table_row, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tokens
    lane = tl.load(lane_of + token, mask=inside, other=0)
    offset = tl.load(offset_of + token, mask=inside, other=0)
    exists = inside & (offset < tl.load(counts + lane, mask=inside, other=0))
    row = tl.load(rows + lane, mask=exists, other=0)
    where = tl.load(position + lane, mask=inside, other=0) + offset
    tl.store(row_out + token, row, mask=inside)
    tl.store(position_out + token, where, mask=inside)
    tl.store(token_out + token, tl.load(table + row * table_row + where, mask=inside, other=0), mask=inside)
