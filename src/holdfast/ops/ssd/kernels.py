"""State space duality in Triton: the checkpoint is read once a window, and written only by a fold.

A token's entry does not depend on the state, so a window needs no triangular system:

    out = gain * (c @ C) + seen @ X          X: all entries since the checkpoint, the window's own included

`front` runs for every (lane, some heads of a group): it appends the window's entries to the journal and computes
`gain` and `seen`, in which c . b is shared by the heads of a group. `main` runs for every (lane, head, block of
channels) and multiplies. If the journal holds a whole line, C is folded first and stored, and passes through the
pool's dtype before it is used. If that rounds and the window passes a line, it STOPS there: C is folded on the way
and not stored, since what lies beyond may yet be rejected.

A checkpoint is stored [slot, head, state, channel]. Bytes per lane and layer of 128 heads of 64 x 128 in
8 groups, float32, J = 16: the checkpoint is 4 MiB, an entry 19 KiB. Decode reads 4 MiB + 7.5 entries, writes an
entry, and 4 MiB in one step of 16: at batch 256 1.18 GB, 278 us at 4.26 TB/s; read-modify-write moves 2.15 GB.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import BEYOND, either, product, sees


@triton.jit
def front(
    x, b, c, dt, log_decay,  # [tokens, H, P], [tokens, G, S] twice, [tokens, H] twice
    journal_x, journal_b, journal_dt, journal_g,
    seen_out,  # [lanes, H, TP, LP]: what each token sees of each entry since the checkpoint, or since the line
    gain_out,  # [lanes, H, TP]: decay of the checkpoint, or of the state at the line
    mid_out, mid_gain,  # [lanes, H, JP], [lanes, H]: weights of the fold that the window passes
    rows, counts, offsets, position, end_base, tree, tree_size,
    x_stride, b_stride, c_stride, dt_stride, g_stride,
    G: tl.constexpr, GROUP: tl.constexpr, HB: tl.constexpr, P: tl.constexpr, PP: tl.constexpr,
    S: tl.constexpr, SP: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, LP: tl.constexpr,
    CAP: tl.constexpr, TREE: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Windows of up to TP tokens. An entry's place is its distance from the checkpoint: the line is at place J. Of
    one another, nodes of a TREE see their ancestors."""
    block, lane = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    first = tl.load(offsets + lane).to(tl.int64)
    if (row == 0) | (count == 0):
        return
    H: tl.constexpr = G * GROUP
    BLOCKS: tl.constexpr = GROUP // HB
    group, part = block // BLOCKS, block % BLOCKS
    held = (at - end).to(tl.int32)
    line = tl.full((), J if STOPS else BEYOND, tl.int32)
    passes = held + count > line
    places, window = tl.arange(0, LP), tl.arange(0, TP)
    states, channels = tl.arange(0, SP), tl.arange(0, PP)
    inner = states < S
    tokens = end + places
    exists, new = places < held + count, (places >= held) & (places < held + count)
    own_place = held + window
    alive = window < count

    ring_b = journal_b + (row * CAP * G + group) * S + states
    keys = either(
        ring_b[None, :], (b + group * S + states)[None, :], tokens[:, None], at, first, G * S, b_stride,
        exists[:, None] & inner[None, :], CAP,
    )  # fmt: skip
    queries = tl.load(
        c + (first + window)[:, None] * c_stride + group * S + states[None, :],
        mask=alive[:, None] & inner[None, :],
        other=0.0,
    )
    dots = product(queries, keys.trans(1, 0))  # [TP, LP]
    ring = tokens % CAP
    tl.store(
        ring_b[None, :] + ring[:, None] * (G * S), keys, mask=(new & (part == 0))[:, None] & inner[None, :]
    )
    beyond = own_place >= line
    reach = (places[None, :] <= own_place[:, None]) & alive[:, None]  # [TP, LP]: no later than the token
    if TREE:
        own = reach & new[None, :]
        reach &= ~new[None, :] | sees(tree, tree_size, lane, window[:, None], (places - held)[None, :], own)
    visible = reach & ((places[None, :] >= line) | ~beyond[:, None])
    later = (places[:, None] > places[None, :]).to(tl.float32)  # [r, i]: r comes after i
    at_line = own_place == J - 1
    for member in tl.static_range(HB):
        head = group * GROUP + part * HB + member
        mine = lane.to(tl.int64) * H + head
        ring_g, ring_dt = journal_g + row * CAP * H + head, journal_dt + row * CAP * H + head
        gates = either(ring_g, log_decay + head, tokens, at, first, H, g_stride, exists, CAP)
        steps = either(ring_dt, dt + head, tokens, at, first, H, dt_stride, exists, CAP)
        tl.store(ring_g + ring * H, gates, mask=new)
        tl.store(ring_dt + ring * H, steps, mask=new)
        value = alive[:, None] & (channels < P)[None, :]
        tl.store(
            journal_x
            + (row * CAP * H + head) * P
            + ((at + window) % CAP)[:, None] * (H * P)
            + channels[None, :],
            tl.load(
                x + (first + window)[:, None] * x_stride + head * P + channels[None, :], mask=value, other=0.0
            ),
            mask=value,
        )
        # [t, i]: the sum of gates after i up to t, of one sign only
        between = tl.dot(tl.where(reach, gates[None, :], 0.0), later, input_precision="tf32x3")
        seen = tl.where(visible, tl.exp(between) * steps[None, :] * dots, 0.0)
        tl.store(seen_out + (mine * TP + window[:, None]) * LP + places[None, :], seen)
        gain = tl.exp(tl.sum(tl.where(visible, gates[None, :], 0.0), 1))
        tl.store(gain_out + mine * TP + window, gain)
        if passes:
            to_line = tl.sum(tl.where(at_line[:, None], between, 0.0), 0)
            tl.store(mid_out + mine * JP + places, tl.exp(to_line) * steps, mask=places < J)
            tl.store(mid_gain + mine, tl.sum(tl.where(at_line, gain, 0.0)))


@triton.jit
def line_of(
    journal_dt, journal_g, row, begin, head,
    H: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Of the whole line from `begin`: its decay, and what each entry's x counts for at its end."""
    places = tl.arange(0, JP)
    here, next = ((begin + places) % CAP) * H, ((begin + places + 1) % CAP) * H
    gates, steps = journal_g + row * CAP * H + head, journal_dt + row * CAP * H + head
    after = tl.load(gates + next, mask=places < J - 1, other=0.0)
    whole = tl.sum(tl.load(gates + here, mask=places < J, other=0.0))
    step = tl.load(steps + here, mask=places < J, other=0.0)
    return tl.exp(whole), step * tl.exp(tl.cumsum(after, reverse=True))


@triton.jit
def with_line(state, decay, keys, weight, values):
    """decay * state + keys^T @ (weight * values), in the dtype of the state; keys [JP, BS], values [JP, BP]"""
    added = product(keys.trans(1, 0), weight[:, None] * values.to(tl.float32))
    return (decay * state.to(tl.float32) + added).to(state.dtype)


@triton.jit
def _recalled(
    queries, state, known, alive, inside,
    S: tl.constexpr, SP: tl.constexpr, BS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """[TP, BP]: queries @ state, both by pointers; nothing is read of a state that is not known."""
    found = tl.zeros((alive.shape[0], inside.shape[0]), tl.float32)
    if known:
        for s in range(0, SP, BS):
            states = s + tl.arange(0, BS)
            inner = states < S
            part = tl.load(state + states[:, None] * P, mask=inner[:, None] & inside[None, :], other=0.0)
            query = tl.load(queries + states[None, :], mask=alive[:, None] & inner[None, :], other=0.0)
            found += product(query, part)
    return found


@triton.jit
def _recalled_folded(
    queries, state, known, target, keys, ring_x, line, decay, weight, alive, inside,
    G: tl.constexpr, H: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, BS: tl.constexpr, P: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, CAP: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The same after the line's entries are folded into the state; KEPT: which goes to `target`."""
    found = tl.zeros((alive.shape[0], inside.shape[0]), tl.float32)
    places = tl.arange(0, JP)
    place, real = ((line + places) % CAP)[:, None], (places < J)[:, None]
    values = tl.load(ring_x + place * (H * P), mask=real & inside[None, :], other=0.0)
    for s in range(0, SP, BS):
        states = s + tl.arange(0, BS)
        inner = states < S
        tile = inner[:, None] & inside[None, :]
        part = tl.load(state + states[:, None] * P, mask=tile & known, other=0.0)
        key = tl.load(keys + place * (G * S) + states[None, :], mask=real & inner[None, :], other=0.0)
        part = with_line(part, decay, key, weight, values)
        if KEPT:
            tl.store(target + states[:, None] * P, part, mask=tile)
        query = tl.load(queries + states[None, :], mask=alive[:, None] & inner[None, :], other=0.0)
        found += product(query, part)
    return found


@triton.jit
def main(
    c, out,  # [tokens, G, S], [tokens, H, P]
    saved,  # [slots, H, S, P]
    journal_x, journal_b, journal_dt, journal_g,
    seen_in, gain_in, mid_in, mid_gain,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, c_stride,
    G: tl.constexpr, GROUP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, BS: tl.constexpr, P: tl.constexpr,
    BP: tl.constexpr, TP: tl.constexpr, J: tl.constexpr, JP: tl.constexpr, LP: tl.constexpr, CAP: tl.constexpr,
    FOLDS: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """FOLDS: only lanes that fold or pass a line; otherwise the others, which then cost no registers for it."""
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target_slot = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    held = (at - end).to(tl.int32)
    passes = (held + count > J) & STOPS
    if (row == 0) | (((end > begin) | passes) != FOLDS):
        return
    H: tl.constexpr = G * GROUP
    places, window, line_places = tl.arange(0, LP), tl.arange(0, TP), tl.arange(0, JP)
    channels = block * BP + tl.arange(0, BP)
    inside, alive = channels < P, window < count
    mine = lane.to(tl.int64) * H + head
    state = saved + (slot * H + head) * S * P + channels[None, :]
    queries = c + (first + window)[:, None] * c_stride + (head // GROUP) * S
    keys = journal_b + (row * CAP * G + head // GROUP) * S
    ring_x = journal_x + (row * CAP * H + head) * P + channels[None, :]
    values = tl.load(
        ring_x + ((end + places) % CAP)[:, None] * (H * P),
        mask=(places < held + count)[:, None] & inside[None, :],
        other=0.0,
    )
    if count > 0:
        seen = tl.load(seen_in + (mine * TP + window[:, None]) * LP + places[None, :])
        gain = tl.load(gain_in + mine * TP + window)
    else:
        seen, gain = tl.zeros((TP, LP), tl.float32), tl.zeros((TP,), tl.float32)
    known = begin > 0
    if FOLDS:
        if end > begin:
            decay, weight = line_of(journal_dt, journal_g, row, begin, head, H, J, JP, CAP)
            target = saved + (target_slot * H + head) * S * P + channels[None, :]
            found = _recalled_folded(
                queries, state, known, target, keys, ring_x, begin, decay, weight, alive, inside,
                G, H, S, SP, BS, P, J, JP, CAP, KEPT=True,
            )  # fmt: skip
            tl.debug_barrier()  # if it passes the next line too, it reads again what was just written
            state, known = target, True
        else:
            found = _recalled(queries, state, known, alive, inside, S, SP, BS, P)
        if passes:
            weight = tl.load(mid_in + mine * JP + line_places, mask=line_places < J, other=0.0)
            beyond = _recalled_folded(
                queries, state, known, state, keys, ring_x, end, tl.load(mid_gain + mine), weight, alive, inside,
                G, H, S, SP, BS, P, J, JP, CAP, KEPT=False,
            )  # fmt: skip
            found = tl.where((held + window < J)[:, None], found, beyond)
    else:
        found = _recalled(queries, state, known, alive, inside, S, SP, BS, P)
    tl.store(
        out + ((first + window)[:, None] * H + head) * P + channels[None, :],
        gain[:, None] * found + product(seen, values),
        mask=alive[:, None] & inside[None, :],
    )
