"""State space duality for single tokens, in Triton: launched as the gated delta rule's."""

from __future__ import annotations

import triton
import triton.language as tl

from ..gated_delta.checkpoint_kernels import load_parts
from ..twins.kernels import back, either, fold_workers
from .kernels import line_of, with_line


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
        decay, weight = line_of(journal_dt, journal_g, row, begin, head, H, J, JP, CAP)
        state = with_line(state, decay, keys, weight, values)
        tl.store(saved + (target * H + head) * S * P + offset, state, mask=tile)
        recalled = tl.sum(state.to(tl.float32) * query.to(tl.float32)[:, None], 0)
        result = gain * recalled + tl.sum(seen[:, None] * since, 0)
        tl.store(out + (token * H + head) * P + channels, result, mask=inside & exists)


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
