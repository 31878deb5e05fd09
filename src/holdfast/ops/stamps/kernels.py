"""Stamps of a step of windows, compared and written in Triton. What they mean is told in `memory.stamps`.

Findings go to one buffer (`findings`). A program reports the first that it meets of each kind. A lane whose row is 0
is padding, and nothing is looked at for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import findings

FIELDS = tl.constexpr(findings.FIELDS)
MOST = tl.constexpr(findings.MOST)
NO_STATE, NO_STAMP = tl.constexpr(findings.NO_STATE), tl.constexpr(findings.NO_STAMP)
CURSOR, TOKEN = tl.constexpr(findings.CURSOR), tl.constexpr(findings.TOKEN)
READ, WRITE = tl.constexpr(findings.READ), tl.constexpr(findings.WRITE)
PUBLISH, ACCEPT = tl.constexpr(findings.PUBLISH), tl.constexpr(findings.ACCEPT)
POSITION = tl.constexpr((1 << 24) - 1)
"""The bits of a stamp that say how long the text is."""


@triton.jit
def _report(found, wrong, what, state, row, place, expected, stamp):
    if wrong:
        number = tl.atomic_add(found, 1)
        if number < MOST:
            to = found + 1 + number * FIELDS
            tl.store(to, what)
            tl.store(to + 1, state)
            tl.store(to + 2, row)
            tl.store(to + 3, place)
            tl.store(to + 4, expected)
            tl.store(to + 5, stamp)


@triton.jit
def _after(stamp, token, keys, longest):
    """The stamp of a text with `stamp`, when `token` has come to it."""
    position = tl.minimum(stamp & POSITION, longest - 1)
    return stamp + token * tl.load(keys + position) + 1


@triton.jit
def _misplaced(wanted, takes, ahead, stand, lane, row, count, at):
    """Was a layer given another lane than is meant, or another place for it?"""
    other = (row != tl.load(wanted + lane)) | (count != tl.load(takes + lane))
    return other | (at != tl.load(stand + row) + ahead)


@triton.jit
def cursors(
    found, missing,  # a state that nobody used, or -1
    meant, meant_row,  # [4, lanes]: row, least and most position, tokens; as the plan has them
    rows, counts, position, drafts, tokens,  # [lanes], tokens [lanes, window]; drafts: the last of them
    stand, chain, chain_row, keys, longest, window,
):  # fmt: skip
    """One program for each lane: does it stand where its row should, with the tokens that should be there? Drafts are
    what they are: the row's text goes on with them."""
    lane = tl.program_id(0)
    row, count, at = tl.load(rows + lane), tl.load(counts + lane), tl.load(position + lane)
    wanted = tl.load(meant + lane)
    least, most = tl.load(meant + meant_row + lane), tl.load(meant + 2 * meant_row + lane)
    begin, takes = tl.load(stand + wanted), tl.load(meant + 3 * meant_row + lane)
    lost = (row != wanted) | (count != takes)
    lost = lost | ((wanted > 0) & ((at != begin) | (begin > most) | (begin < least)))
    _report(found, lost, CURSOR, NO_STATE, wanted, row, begin, NO_STAMP)
    if wanted > 0:
        _report(found, missing >= 0, WRITE, missing, wanted, 0, 0, NO_STAMP)
        text, known = chain + wanted * chain_row + begin, takes - tl.load(drafts + lane)
        stamp = tl.load(text)
        for place in range(takes):
            stamp = _after(stamp, tl.load(tokens + lane * window + place), keys, longest)
            stood = tl.load(text + place + 1)
            other = (place < known) & (stamp != stood)
            _report(found, other, TOKEN, NO_STATE, wanted, wanted, begin + place + 1, NO_STAMP)
            stamp = tl.where(place < known, stood, stamp)
            tl.store(text + place + 1, stamp)


@triton.jit(do_not_specialize=["ahead"])
def recurrent(
    found, states, ring, ring_state, slots, slots_state,  # states [n, 2]: which of the ring's stamps, of the slots'
    wanted, takes, rows, counts, position, base, read_slot, end_base, write_slot,  # [lanes]
    ahead, stand, tickets, slot_owner, chain, chain_row,
    CAP: tl.constexpr, BC: tl.constexpr, REACH: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """One program for each lane and state: what the window needs is there, and its tokens are written where they may
    be.

    ahead          lanes begin so far beyond where their rows stand
    wanted, takes  rows, and how many tokens each takes
    REACH          inputs that are read before a token, and kept with a checkpoint; 0: all entries since that
    BT             at least the tokens of a window
    """
    lane, number = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + lane)
    if row > 0:
        count, at, start = tl.load(counts + lane), tl.load(position + lane), tl.load(base + lane)
        end, came_from = tl.load(end_base + lane), tl.load(read_slot + lane)
        folds = end > start
        cells = ring + tl.load(states + 2 * number) * ring_state + row * CAP
        state = tl.load(states + 2 * number + 1)
        saved = slots + state * slots_state
        text = chain + row * chain_row

        cell = tl.arange(0, BC)
        # the last position before this one that is kept there
        place = at - 1 - (at - 1 - cell + BC * CAP) % CAP
        needed = (cell < CAP) & (place >= start)
        if REACH:
            before_fold = folds & (place >= end - REACH) & (place < end)
            needed = needed & (((count > 0) & (place >= at - REACH)) | before_fold)
        held = tl.load(cells + cell, mask=needed, other=0)
        wrong = needed & (held != tl.load(text + place + 1, mask=needed, other=0))
        first = tl.min(tl.where(wrong, place, at), 0)
        stamp = tl.sum(tl.where(wrong & (place == first), held, 0), 0)
        _report(found, first < at, READ, state, row, row * CAP + first % CAP, first + 1, stamp)

        reads = (start > 0) & ((count > 0) | folds)
        if REACH:
            reads = reads & (((count > 0) & (at - REACH < start)) | (folds & (end - REACH < start)))
        if reads:
            stamp = tl.load(saved + came_from)
            other = stamp != tl.load(text + start)
            _report(found, other, READ, state, row, came_from, start, stamp)

        tl.debug_barrier()  # a fold may be in place
        misplaced = _misplaced(wanted, takes, ahead, stand, lane, row, count, at)
        if folds:
            slot = tl.load(write_slot + lane)
            foreign = (tl.load(slot_owner + slot) != tl.load(tickets + row)) | (end > at) | misplaced
            _report(found, foreign, WRITE, state, row, slot, end, NO_STAMP)
            tl.store(saved + slot, tl.load(text + end))
        if count > 0:
            _report(found, misplaced, WRITE, state, row, row * CAP + at % CAP, at + 1, NO_STAMP)
            token = at + tl.arange(0, BT)
            stamps = tl.load(text + token + 1, mask=token < at + count, other=0)
            tl.store(cells + token % CAP, stamps, mask=token < at + count)


@triton.jit(do_not_specialize=["ahead"])
def paged(
    found, states, first_state, stamps, stamps_state,  # states [n, 2]: which of the stamps
    pages, pages_row, wanted, takes, rows, counts, position,
    ahead, stand, tickets, page_owner, chain, chain_row,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """One program for each lane, layer and BLOCK * BLOCKS positions: all pages hold the row's tokens. The first one
    of them looks after the tokens that are written."""
    lane, number, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count, at = tl.load(rows + lane), tl.load(counts + lane), tl.load(position + lane)
    begin = part * BLOCK * BLOCKS
    if (row > 0) & (count > 0) & (begin <= at):
        own = tl.load(states + 2 * number)
        state = first_state + own
        there, text, table = stamps + own * stamps_state, chain + row * chain_row, pages + row * pages_row
        for block in range(BLOCKS):
            place = begin + block * BLOCK + tl.arange(0, BLOCK)
            needed = place < at
            page = tl.load(table + place // PAGE, mask=needed, other=0).to(tl.int64)
            held = tl.load(there + page * PAGE + place % PAGE, mask=needed, other=0)
            wrong = needed & (held != tl.load(text + place + 1, mask=needed, other=0))
            first = tl.min(tl.where(wrong, place, at), 0)
            stamp = tl.sum(tl.where(wrong & (place == first), held, 0), 0)
            where = tl.sum(tl.where(place == first, page * PAGE + place % PAGE, 0), 0)
            _report(found, first < at, READ, state, row, where, first + 1, stamp)
        if part == 0:
            place = at + tl.arange(0, BT)
            written = place < at + count
            page = tl.load(table + place // PAGE, mask=written, other=0).to(tl.int64)
            owner = tl.load(page_owner + page, mask=written, other=0)
            foreign = owner != tl.load(tickets + row)
            foreign = foreign | _misplaced(wanted, takes, ahead, stand, lane, row, count, at)
            first = tl.min(tl.where(written & foreign, place, at + count), 0)
            where = tl.sum(tl.where(place == first, page * PAGE + place % PAGE, 0), 0)
            _report(found, first < at + count, WRITE, state, row, where, first + 1, NO_STAMP)
            stamps_of = tl.load(text + place + 1, mask=written, other=0)
            tl.store(there + page * PAGE + place % PAGE, stamps_of, mask=written)


@triton.jit
def accepted(
    found, meant, meant_row, rows, drafts, first, tell, kept, chosen,  # [lanes], chosen [lanes, window]
    stand, chain, chain_row, keys, longest,  # tell: rows that are given what was chosen; kept: drafts
    used, granted, granted_row, slots, slots_state, num_states, slot_owner,  # granted [2, rows]: slot, line
    NOBODY: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """One program for each lane: a draft that was kept is what was chosen in its place. Then the row stands behind
    it, and what was chosen next comes after it. A slot that was promised and used holds its line in every state,
    and belongs to nobody from now on."""
    lane = tl.program_id(0)
    wanted = tl.load(meant + lane)
    if wanted > 0:
        proposed, certain = tl.load(drafts + lane), tl.load(kept + lane)
        known = tl.load(stand + wanted) + tl.load(meant + 3 * meant_row + lane) - proposed
        text, choice = chain + wanted * chain_row + known, chosen + tl.load(first + lane)
        wrong = certain > proposed
        for place in range(tl.minimum(certain, proposed)):
            stamp = _after(tl.load(text + place), tl.load(choice + place), keys, longest)
            wrong = wrong | (stamp != tl.load(text + place + 1))
        _report(found, wrong, ACCEPT, NO_STATE, wanted, wanted, known + certain, NO_STAMP)
        tl.store(stand + wanted, known + certain)
        if (tl.load(tell + lane) > 0) & (known + certain < longest):
            last = _after(tl.load(text + certain), tl.load(choice + certain), keys, longest)
            tl.store(text + certain + 1, last)
    row = tl.load(rows + lane)
    if (row > 0) & (tl.load(used + lane) > 0):
        slot, line = tl.load(granted + row), tl.load(granted + granted_row + row)
        state = tl.arange(0, BS)
        held = tl.load(slots + state * slots_state + slot, mask=state < num_states, other=0)
        other = (state < num_states) & (held != tl.load(chain + row * chain_row + line))
        nth = tl.min(tl.where(other, state, BS), 0)
        _report(found, nth < BS, PUBLISH, nth, row, slot, line, tl.sum(tl.where(state == nth, held, 0), 0))
        tl.store(slot_owner + slot, NOBODY)


@triton.jit
def drafted(
    found, rows, position, drafts, depth,  # [lanes], drafts [lanes, depth]
    stand, chain, chain_row, keys, longest,
):  # fmt: skip
    """One program for each lane: it stands where its row does; and the row's text goes on with what was drafted,
    behind the token that was chosen last."""
    lane = tl.program_id(0)
    row, at = tl.load(rows + lane), tl.load(position + lane)
    if row > 0:
        stands = tl.load(stand + row)
        _report(found, at != stands, CURSOR, NO_STATE, row, row, stands, NO_STAMP)
        text = chain + row * chain_row + stands + 1
        stamp = tl.load(text)
        for place in range(tl.minimum(depth, longest - stands - 1)):
            stamp = _after(stamp, tl.load(drafts + lane * depth + place), keys, longest)
            tl.store(text + place + 1, stamp)
