"""Prompt look-up, in Triton: one program reads a lane's text once, as far as it goes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def look_up(
    table, rows, position, drafts_out, count_out, table_row, depth,
    LONGEST: tl.constexpr, SHORTEST: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """PLACES: at least `depth`. A lane of padding stands at 0, and finds nothing."""
    lane = tl.program_id(0)
    at = tl.load(position + lane)
    text = table + tl.load(rows + lane) * table_row
    best = tl.zeros(
        (BLOCK,), tl.int64
    )  # length and place of the best so far, of those that each thread looked at
    for first in range(0, at, BLOCK):
        place = first + tl.arange(0, BLOCK).to(tl.int64)
        matching = place < at
        length = tl.zeros((BLOCK,), tl.int64)
        for back in tl.static_range(LONGEST):
            matching = matching & (place >= back)
            wanted = tl.load(text + at - back, mask=at >= back, other=-1)
            matching = matching & (tl.load(text + place - back, mask=matching, other=-2) == wanted)
            length += matching.to(tl.int64)
        best = tl.maximum(best, tl.where(length > 0, (length << 32) | place, 0))
    found = tl.max(best, 0)
    end = found & 0xFFFFFFFF
    number = tl.arange(0, PLACES)
    following = text + end + 1 + number % tl.maximum(at - end, 1)
    wanted = number < depth
    tl.store(drafts_out + lane * depth + number, tl.load(following, mask=wanted, other=0), mask=wanted)
    tl.store(count_out + lane, tl.where((found >> 32) >= SHORTEST, depth, 0))
