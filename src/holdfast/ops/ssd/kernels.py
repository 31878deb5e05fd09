"""State space duality in Triton: the checkpoint is read once a window, and written only by a fold.

A token's entry does not depend on the state, so a window needs no triangular system:

    out = gain * (c @ C) + seen @ X          X: all entries since the checkpoint, the window's own included

`front` runs for every (lane, some heads of a group): it appends the window's entries to the journal and computes
`gain` and `seen`, in which c . b is shared by the heads of a group. `main` runs for every (lane, head, block of
channels) and multiplies. If the journal holds a whole line, C is folded first and stored; if the window passes a
line, C is folded on the way and not stored, since what lies beyond may yet be rejected. Either way it passes
through the pool's dtype before it is used. `chunk` takes runs, block by block, with the state in registers.

A checkpoint is stored [slot, head, state, channel]. Bytes per lane and layer of 128 heads of 64 x 128 in
8 groups, float32, J = 16: the checkpoint is 4 MiB, an entry 19 KiB. Decode reads 4 MiB + 7.5 entries, writes an
entry, and 4 MiB in one step of 16: at batch 256 1.18 GB, 278 us at 4.26 TB/s; read-modify-write moves 2.15 GB.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..gated_delta.checkpoint_kernels import load_parts
from ..twins.kernels import BEYOND, back, either, fold_workers, piece, product, sees


@triton.jit
def front_one(
    x, b, c, dt, log_decay,  # [tokens, H, P], [tokens, G, S] twice, [tokens, H] twice
    journal_x, journal_b, journal_dt, journal_g,
    seen_out,  # [lanes, H, LP]: of each entry since the checkpoint, the token's own included
    gain_out,  # [lanes, H]: decay of the checkpoint
    rows, counts, offsets, position, end_base,
    x_stride, b_stride, c_stride, dt_stride, g_stride,
    G: tl.constexpr, GROUP: tl.constexpr, HB: tl.constexpr, P: tl.constexpr, PP: tl.constexpr,
    S: tl.constexpr, SP: tl.constexpr, LP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Windows of one token; HB heads of a group to a program."""
    block, lane = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    at, end = tl.load(position + lane), tl.load(end_base + lane)
    token = tl.load(offsets + lane).to(tl.int64)
    if (row == 0) | (count == 0):
        return
    H: tl.constexpr = G * GROUP
    BLOCKS: tl.constexpr = (GROUP + HB - 1) // HB
    group, part = block // BLOCKS, block % BLOCKS
    heads = group * GROUP + part * HB + tl.arange(0, HB)
    mine = heads < (group + 1) * GROUP
    places, states, channels = tl.arange(0, LP), tl.arange(0, SP), tl.arange(0, PP)
    tokens = at - places  # the newest first: what is forgotten since each is then a sum from the front
    exists = tokens >= end
    inner = states < S
    ring_b = journal_b + (row * CAP * G + group) * S + states
    ring_dt, ring_g = journal_dt + row * CAP * H + heads, journal_g + row * CAP * H + heads
    keys = either(
        ring_b[None, :], (b + group * S + states)[None, :], tokens[:, None], at, token, G * S, b_stride,
        exists[:, None] & inner[None, :], CAP,
    )  # fmt: skip
    query = tl.load(c + token * c_stride + group * S + states, mask=inner, other=0.0).to(tl.float32)
    wanted = exists[:, None] & mine[None, :]
    gates = either(
        ring_g[None, :], (log_decay + heads)[None, :], tokens[:, None], at, token, H, g_stride, wanted, CAP
    )
    after = either(
        ring_g[None, :], (log_decay + heads)[None, :], (tokens + 1)[:, None], at, token, H, g_stride,
        (exists & (places > 0))[:, None] & mine[None, :], CAP,
    )  # fmt: skip
    steps = either(
        ring_dt[None, :], (dt + heads)[None, :], tokens[:, None], at, token, H, dt_stride, wanted, CAP
    )
    own_key = tl.load(b + token * b_stride + group * S + states, mask=inner, other=0.0)
    own_gate = tl.load(log_decay + token * g_stride + heads, mask=mine, other=0.0)
    own_step = tl.load(dt + token * dt_stride + heads, mask=mine, other=0.0)
    tile = mine[:, None] & (channels < P)[None, :]
    value = tl.load(x + token * x_stride + heads[:, None] * P + channels[None, :], mask=tile, other=0.0)
    dots = tl.sum(keys.to(tl.float32) * query[None, :], 1)
    seen = tl.exp(tl.cumsum(after, 0)) * steps * dots[:, None]
    home = lane.to(tl.int64) * H + heads
    tl.store(seen_out + home[None, :] * LP + places[:, None], seen, mask=mine[None, :])
    tl.store(gain_out + home, tl.exp(tl.sum(gates, 0)), mask=mine)

    place = at % CAP
    tl.store(ring_g + place * H, own_gate, mask=mine)
    tl.store(ring_dt + place * H, own_step, mask=mine)
    tl.store(
        journal_x + (row * CAP + place) * H * P + heads[:, None] * P + channels[None, :], value, mask=tile
    )
    tl.store(ring_b + place * (G * S), own_key, mask=inner & (part == 0))


@triton.jit
def _line(
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
def _folded(state, decay, keys, weight, values):
    """decay * state + keys^T @ (weight * values), in the dtype of the state; keys [JP, BS], values [JP, BP]"""
    added = product(keys.trans(1, 0), weight[:, None] * values.to(tl.float32))
    return (decay * state.to(tl.float32) + added).to(state.dtype)


@triton.jit
def fold_one(
    c, out, saved, journal_x, journal_b, journal_dt, journal_g, seen_in, gain_in, folds,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot, c_stride, few,
    G: tl.constexpr, GROUP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, P: tl.constexpr, BP: tl.constexpr,
    J: tl.constexpr, JP: tl.constexpr, LP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """As `gated_delta.single_kernels.fold_one`."""
    H: tl.constexpr = G * GROUP
    BLOCKS: tl.constexpr = (P + BP - 1) // BP
    states, places = tl.arange(0, SP), tl.arange(0, JP)
    inner, real = states < S, (places < J)[:, None]
    pieces, mine = tl.load(folds) * H * BLOCKS, tl.program_id(0)
    workers = fold_workers(pieces, few)
    for item in range(tl.where(mine < workers, mine, pieces), pieces, workers):
        lane, head = tl.load(folds + 1 + item // (H * BLOCKS)), item // BLOCKS % H
        channels = item % BLOCKS * BP + tl.arange(0, BP)
        inside = channels < P
        row, exists = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane) > 0
        begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
        slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
        token = tl.load(offsets + lane).to(tl.int64)
        tile, offset = inner[:, None] & inside[None, :], states[:, None] * P + channels[None, :]
        state = tl.load(saved + (slot * H + head) * S * P + offset, mask=tile & (begin > 0), other=0.0)
        place = ((begin + places) % CAP)[:, None]
        ring_b = journal_b + (row * CAP * G + head // GROUP) * S + states[None, :]
        ring_x = journal_x + (row * CAP * H + head) * P + channels[None, :]
        keys = tl.load(ring_b + place * (G * S), mask=real & inner[None, :], other=0.0)
        values = tl.load(ring_x + place * (H * P), mask=real & inside[None, :], other=0.0)
        query = tl.load(c + token * c_stride + (head // GROUP) * S + states, mask=inner & exists, other=0.0)
        since, seen, gain = _since_one(
            lane, row, head, at, end, channels, inside & exists, journal_x, seen_in, gain_in, H, P, LP, CAP
        )
        decay, weight = _line(journal_dt, journal_g, row, begin, head, H, J, JP, CAP)
        state = _folded(state, decay, keys, weight, values)
        tl.store(saved + (target * H + head) * S * P + offset, state, mask=tile)
        recalled = tl.sum(state.to(tl.float32) * query.to(tl.float32)[:, None], 0)
        result = gain * recalled + tl.sum(seen[:, None] * since, 0)
        tl.store(out + (token * H + head) * P + channels, result, mask=inside & exists)


@triton.jit
def _since_one(
    lane, row, head, at, end, channels, inside, journal_x, seen_in, gain_in,
    H: tl.constexpr, P: tl.constexpr, LP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """What a token sees since the checkpoint, itself included [LP, BP]; how much of each; and of the checkpoint."""
    places, mine = tl.arange(0, LP), lane.to(tl.int64) * H + head
    values = tl.load(
        journal_x
        + (row * CAP * H + head) * P
        + (back(at + 1, LP, CAP)[:, None] * (H * P) + channels[None, :]),
        mask=(places <= (at - end).to(tl.int32))[:, None] & inside[None, :],
        other=0.0,
    )
    return values.to(tl.float32), tl.load(seen_in + mine * LP + places), tl.load(gain_in + mine)


@triton.jit
def main_one(
    c, out,  # [tokens, G, S], [tokens, H, P]
    saved,  # [slots, H, S, P]
    journal_x, seen_in, gain_in,
    rows, counts, offsets, position, base, end_base, read_slot, c_stride,
    G: tl.constexpr, GROUP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, SC: tl.constexpr,
    P: tl.constexpr, BP: tl.constexpr, LP: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Windows of one token, of lanes that do not fold. Parts of SC states at a time need fewer registers."""
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    H: tl.constexpr = G * GROUP
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, token = tl.load(read_slot + lane).to(tl.int64), tl.load(offsets + lane).to(tl.int64)
    if (row == 0) | (count == 0) | (end > begin):
        return
    channels = block * BP + tl.arange(0, BP)
    inside = channels < P
    query = c + token * c_stride + (head // GROUP) * S
    parts = load_parts(saved, slot, head, channels, inside & (end > 0), H, S, SP, P, SC, 4)
    since, seen, gain = _since_one(
        lane, row, head, at, end, channels, inside, journal_x, seen_in, gain_in, H, P, LP, CAP
    )
    recalled = tl.zeros((SC, BP), tl.float32)
    for i in tl.static_range(SP // SC):
        states = i * SC + tl.arange(0, SC)
        of_query = tl.load(query + states, mask=states < S, other=0.0).to(tl.float32)
        recalled += parts[i].to(tl.float32) * of_query[:, None]
    result = gain * tl.sum(recalled, 0) + tl.sum(seen[:, None] * since, 0)
    tl.store(out + (token * H + head) * P + channels, result, mask=inside)


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
    CAP: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Windows of up to TP tokens. An entry's place is its distance from the checkpoint: the line is at place J. Nodes
    of a TREE pass none, and see their ancestors of one another."""
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
    line = tl.full((), BEYOND, tl.int32) if TREE else tl.full((), J, tl.int32)
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
        part = _folded(part, decay, key, weight, values)
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
    FOLDS: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """FOLDS: only lanes that fold or pass a line; otherwise the others, which then cost no registers for it."""
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane).to(tl.int32)
    begin, end, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target_slot = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    held = (at - end).to(tl.int32)
    passes = (held + count > J) & (not TREE)
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
            decay, weight = _line(journal_dt, journal_g, row, begin, head, H, J, JP, CAP)
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


@triton.jit
def chunk(
    x, b, c, dt, log_decay, out,  # [tokens, H, P], [tokens, G, S] twice, [tokens, H] twice, [tokens, H, P]
    saved, journal_x, journal_b, journal_dt, journal_g,
    rows, counts, offsets, position, base, end_base, read_slot, write_slot,
    export_first, export_line, export_slot,
    x_stride, b_stride, c_stride, dt_stride, g_stride,
    G: tl.constexpr, GROUP: tl.constexpr, S: tl.constexpr, SP: tl.constexpr, P: tl.constexpr, BP: tl.constexpr,
    BT: tl.constexpr, CHUNK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Runs, from their checkpoint on: first what the journal holds, then the tokens given.

    Pieces end at multiples of BT, at the last line, and where an export is asked for. There the state passes through
    the pool's dtype, unless it is at a multiple of BT that is none of CHUNK. The journal is only read: its tail is
    appended when all have read it.
    """
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    begin, stop, at = tl.load(base + lane), tl.load(end_base + lane), tl.load(position + lane)
    slot, target = tl.load(read_slot + lane).to(tl.int64), tl.load(write_slot + lane).to(tl.int64)
    first = tl.load(offsets + lane).to(tl.int64)
    export, exports = tl.load(export_first + lane), tl.load(export_first + lane + 1)
    if row == 0:
        return
    H: tl.constexpr = G * GROUP
    states, channels, nth = tl.arange(0, SP), block * BP + tl.arange(0, BP), tl.arange(0, BT)
    inner, inside = states < S, channels < P
    tile = inner[:, None] & inside[None, :]
    offset = states[:, None] * P + channels[None, :]
    ring_b = journal_b + (row * CAP * G + head // GROUP) * S + states[None, :]
    ring_x = journal_x + (row * CAP * H + head) * P + channels[None, :]
    ring_g, ring_dt = journal_g + row * CAP * H + head, journal_dt + row * CAP * H + head
    given_b = b + (head // GROUP) * S + states[None, :]
    given_c = c + (head // GROUP) * S + states[None, :]
    given_x = x + head * P + channels[None, :]

    loaded = tl.load(saved + (slot * H + head) * S * P + offset, mask=tile & (begin > 0), other=0.0)
    state = loaded.to(tl.float32)
    low, last = begin, at + count
    while low < last:
        wished = tl.load(export_line + export)
        wished = tl.where((export < exports) & (wished > low), wished, last)
        high = tl.minimum(tl.minimum((low // BT + 1) * BT, wished), tl.where(low < stop, stop, last))
        exists = nth < (high - low).to(tl.int32)
        gates = piece(ring_g, log_decay + head, nth, low, at, first, H, g_stride, exists, CAP)
        after = piece(
            ring_g,
            log_decay + head,
            nth + 1,
            low,
            at,
            first,
            H,
            g_stride,
            nth < (high - low - 1).to(tl.int32),
            CAP,
        )
        steps = piece(ring_dt, dt + head, nth, low, at, first, H, dt_stride, exists, CAP)
        keys = piece(
            ring_b, given_b, nth[:, None], low, at, first, G * S, b_stride,
            exists[:, None] & inner[None, :], CAP,
        )  # fmt: skip
        values = piece(
            ring_x, given_x, nth[:, None], low, at, first, H * P, x_stride,
            exists[:, None] & inside[None, :], CAP,
        )  # fmt: skip
        asked = exists & (nth >= (at - low).to(tl.int32))
        flat = first + low - at
        queries = tl.load(
            given_c + flat * c_stride + nth[:, None] * c_stride,
            mask=asked[:, None] & inner[None, :],
            other=0.0,
        )
        # [t, i]: the sum of gates after i up to t, of one sign only
        between = tl.cumsum(tl.where(nth[:, None] > nth[None, :], gates[:, None], 0.0), 0)
        near = tl.where(nth[:, None] >= nth[None, :], tl.exp(between) * steps[None, :], 0.0)
        near *= product(queries, keys.trans(1, 0))
        since_start = tl.exp(tl.cumsum(gates))
        result = product(near, values) + since_start[:, None] * product(queries, state)
        tl.store(
            out + (flat * H + head) * P + nth[:, None] * (H * P) + channels[None, :],
            result,
            mask=asked[:, None] & inside[None, :],
        )
        weight = steps * tl.exp(tl.cumsum(after, reverse=True))
        added = product(keys.trans(1, 0), weight[:, None] * values.to(tl.float32))
        state = tl.exp(tl.sum(gates)) * state + added
        rounded = state.to(saved.dtype.element_ty)
        if high == stop:
            tl.store(saved + (target * H + head) * S * P + offset, rounded, mask=tile)
        while (export < exports) & (tl.load(export_line + export) == high):
            copy = tl.load(export_slot + export)
            tl.store(saved + (copy * H + head) * S * P + offset, rounded, mask=tile)
            export += 1
        if (high % CHUNK == 0) | (high == stop) | (high == wished):
            state = rounded.to(tl.float32)
        low = high
