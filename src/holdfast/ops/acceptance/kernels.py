"""Acceptance of drafts, in Triton: one program for each lane that chooses."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def accept(
    lane_of, drafts, first, tell, chosen, table, made, position, counts,
    accepted_out, proposed_out, certain_out, table_row, PLACES: tl.constexpr,
):  # fmt: skip
    """PLACES: more than a lane has drafts. Lanes that do not choose must have their count in certain_out already."""
    at = tl.program_id(0)
    lane, each = tl.load(lane_of + at), tl.load(drafts + at)
    begin, row = tl.load(first + at), tl.load(tell + at)
    count = tl.load(counts + lane)
    known = tl.load(position + lane) + count - each
    proposed = tl.minimum(each, tl.load(made + row))
    place = tl.arange(0, PLACES)
    meant = place < proposed
    guess = tl.load(table + row * table_row + known + place, mask=meant, other=-1)
    right = guess == tl.load(chosen + begin + place, mask=meant, other=0)
    # the first place that is wrong or was not meant; there is one, since there are more places than drafts
    accepted = tl.min(tl.where(right & meant, PLACES, place))
    bonus = tl.load(chosen + begin + accepted)
    tl.store(table + row * table_row + known + accepted, bonus)
    tl.store(made + row, 0)
    tl.store(accepted_out + at, accepted.to(tl.int64))
    tl.store(proposed_out + at, proposed)
    tl.store(certain_out + lane, count - each + accepted)


@triton.jit
def write_drafts(table, made, rows, position, drafts, count, table_row, depth, PLACES: tl.constexpr):
    """PLACES: at least `depth`, which a lane has drafts."""
    lane = tl.program_id(0)
    row, number = tl.load(rows + lane), tl.arange(0, PLACES)
    inside = number < depth
    after = table + row * table_row + tl.load(position + lane) + 1
    tl.store(after + number, tl.load(drafts + lane * depth + number, mask=inside, other=0), mask=inside)
    tl.store(made + row, tl.load(count + lane))
