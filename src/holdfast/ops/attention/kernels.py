"""Attention over paged keys and values, in Triton: one kernel stores, one attends, one joins what splits found.

`attend` takes the queries of some tokens of a lane that share a key head, (token, member of the group) as the rows of
one product, so that keys and values are read once for all of them. A window is one such block; a run is many. The
context may be split among programs: `join` then weighs their results, in the order of the context. How many
splits there are is the host's choice and depends on no length; how long they are is found here.

Of decode's time nothing but the bytes of keys and values should be seen: a token of context costs
(D + DV) * KH * bytes, so a 4B hybrid's 2 KiB per layer at 64 lanes of 4,096 tokens are 0.54 GB, 126 us at 4.26 TB/s.

Rows, positions and lengths are read from the device. A lane is padding if its row is 0: it reads and writes nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..twins.kernels import follow


@triton.jit
def store(
    q, k, v,  # [tokens, QH, D], [tokens, KH, D], [tokens, KH, DV], of any strides but the last
    q_out,  # [tokens, QH, D]
    keys, values,  # [pages, PAGE, KH, D], [pages, PAGE, KH, DV]
    q_weight, k_weight,  # [D] each
    cos, sin,  # [positions, HALF]
    rows, positions,  # [tokens]: whose each token is, and where it stands
    pages,  # [rows, ordinals]
    eps,
    q_token, q_head, k_token, k_head, v_token, v_head,
    k_page, k_place, k_stored, v_page, v_place, v_stored, table_row,
    QH: tl.constexpr, KH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HALF: tl.constexpr,
    NORM: tl.constexpr, ZERO_CENTRED: tl.constexpr, PAGE: tl.constexpr,
    BH: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For every (token, block of heads): query heads go to q_out, then come those of keys and values, to their page.

    NORM: heads are divided by their root mean square, times the weight, or one more than it if ZERO_CENTRED.
    The first 2 HALF channels of a head turn; if HALF is 0, none do.
    """
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, position = tl.load(rows + token), tl.load(positions + token)
    follow(EARLY)
    if row == 0:
        return
    QUERY_BLOCKS: tl.constexpr = (QH + BH - 1) // BH
    d = tl.arange(0, BD)
    if block < QUERY_BLOCKS:
        heads = block * BH + tl.arange(0, BH)
        inside = (heads < QH)[:, None] & (d < D)[None, :]
        head = _prepared(
            q + token * q_token + heads[:, None] * q_head, inside, d, q_weight, cos, sin, position, eps,
            D, HALF, NORM, ZERO_CENTRED,
        )  # fmt: skip
        tl.store(q_out + (token * QH + heads)[:, None] * D + d[None, :], head, mask=inside)
    else:
        heads = (block - QUERY_BLOCKS) * BH + tl.arange(0, BH)
        inside = (heads < KH)[:, None] & (d < D)[None, :]
        page = tl.load(pages + row * table_row + position // PAGE).to(tl.int64)
        head = _prepared(
            k + token * k_token + heads[:, None] * k_head, inside, d, k_weight, cos, sin, position, eps,
            D, HALF, NORM, ZERO_CENTRED,
        )  # fmt: skip
        place = position % PAGE
        target = keys + page * k_page + place * k_place + heads[:, None] * k_stored
        tl.store(target + d[None, :], head, mask=inside)
        if DV > 0:
            e = tl.arange(0, BV)
            inside = (heads < KH)[:, None] & (e < DV)[None, :]
            value = tl.load(v + token * v_token + heads[:, None] * v_head + e[None, :], mask=inside)
            target = values + page * v_page + place * v_place + heads[:, None] * v_stored
            tl.store(target + e[None, :], value, mask=inside)


@triton.jit
def _prepared(
    source, inside, d, weight, cos, sin, position, eps,
    D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, ZERO_CENTRED: tl.constexpr,
):  # fmt: skip
    """Heads [BH, 1] of pointers -> [BH, BD] normed and turned, in float32"""
    own = tl.load(source + d[None, :], mask=inside, other=0.0).to(tl.float32)
    gain = tl.rsqrt(tl.sum(own * own, 1) / D + eps)[:, None]
    if NORM:
        own = _weighed(own * gain, weight, d, d < D, ZERO_CENTRED)
    if HALF > 0:
        turns = d < 2 * HALF
        across = tl.where(d < HALF, d + HALF, d - HALF)  # the channel that each turns with
        other = tl.load(source + across[None, :], mask=inside & turns[None, :], other=0.0).to(tl.float32)
        if NORM:
            other = _weighed(other * gain, weight, across, turns, ZERO_CENTRED)
        at = position * HALF + d % HALF
        along = tl.load(cos + at, mask=turns, other=1.0)
        aside = tl.load(sin + at, mask=turns, other=0.0)
        own = own * along[None, :] + other * tl.where(d < HALF, -aside, aside)[None, :]
    return own


@triton.jit
def _weighed(normed, weight, d, exists, ZERO_CENTRED: tl.constexpr):
    """In the weight's dtype, as what comes after reads it."""
    factor = tl.load(weight + d, mask=exists, other=0.0)
    wide = factor.to(tl.float32)[None, :]
    product = normed * (1.0 + wide) if ZERO_CENTRED else normed.to(factor.dtype).to(tl.float32) * wide
    return product.to(factor.dtype).to(tl.float32)


@triton.jit
def attend(
    queries, out,  # [tokens, QH, D], [tokens, QH, DV]
    keys, values,  # [pages, PAGE, KH, D], [pages, PAGE, KH, DV]
    pages,  # [rows, ordinals]
    partial, lse,  # [programs, KH, splits, BM, DV] and [programs, KH, splits, BM] in float32
    work,  # [2, programs]: of runs, the lane and its first token
    ancestors,  # [windows, T, T]: of trees, who sees whom
    rows, counts, offsets, position,
    q_token, q_head, k_page, k_place, k_head, v_page, v_place, v_head, table_row, nodes, scale,
    G: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, PAGE: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BLOCKS: tl.constexpr, LEAST: tl.constexpr,
    RUNS: tl.constexpr, SPLIT: tl.constexpr, TREE: tl.constexpr, LATENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For every (key head, split, block of tokens): RUNS: `work` names them; else BLOCKS of them are a window.

    LATENT: values are the first DV channels of the keys, which are read once for both; BR pads the others.
    scale   of the scores, times log2(e)
    LEAST   no split is shorter, so that short contexts are not cut up
    """
    head, split, program = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    KH, splits = tl.num_programs(0), tl.num_programs(1)
    lane, first = _work(work, program, tl.num_programs(2), BM // G, BLOCKS, RUNS)
    row, count = tl.load(rows + lane), tl.load(counts + lane).to(tl.int32)
    at, token = tl.load(position + lane).to(tl.int32), tl.load(offsets + lane)
    follow(EARLY)
    if (row == 0) | (first >= count):
        return
    end = at + tl.minimum(first + BM // G, count)
    share = _share(end, splits, BN, LEAST)
    begin = split * share
    stop = tl.minimum(begin + share, end)
    if begin >= stop:
        return
    m, d, e = tl.arange(0, BM), tl.arange(0, BD), tl.arange(0, BV)
    t, member = first + m // G, head * G + m % G
    real = (m < BM // G * G) & (t < count)
    source = queries + (token + t)[:, None] * q_token + member[:, None] * q_head
    KEYS: tl.constexpr = DV if LATENT else D
    query = tl.load(source + d[None, :], mask=real[:, None] & (d < KEYS)[None, :], other=0.0)
    rest = query
    if BR > 0:
        r = DV + tl.arange(0, BR)
        rest = tl.load(source + r[None, :], mask=real[:, None] & (r < D)[None, :], other=0.0)
    table = pages + row * table_row
    own_keys, own_values = keys + head * k_head, values + head * v_head
    own_tree = ancestors + (lane.to(tl.int64) * nodes + t) * nodes

    best = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    mixed = tl.zeros((BM, BV), tl.float32)
    plain = at if TREE else at + first + 1  # every token here sees all that lies before
    plain = tl.minimum(tl.maximum(plain // BN * BN, begin), stop)
    for start in range(begin, plain, BN):
        best, total, mixed = _absorb(
            best, total, mixed, query, rest, start, end, at, t, real, table, own_keys, own_values, own_tree,
            k_page, k_place, v_page, v_place, scale,
            D, DV, PAGE, BD, BR, BV, BN, False, TREE, LATENT,
        )  # fmt: skip
    for start in range(plain, stop, BN):
        best, total, mixed = _absorb(
            best, total, mixed, query, rest, start, end, at, t, real, table, own_keys, own_values, own_tree,
            k_page, k_place, v_page, v_place, scale,
            D, DV, PAGE, BD, BR, BV, BN, True, TREE, LATENT,
        )  # fmt: skip

    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    inside = real[:, None] & (e < DV)[None, :]
    if not SPLIT:
        tl.store(out + ((token + t) * (KH * G) + member)[:, None] * DV + e[None, :], mixed, mask=inside)
    else:
        place = ((program.to(tl.int64) * KH + head) * splits + split) * BM + m
        tl.store(partial + place[:, None] * DV + e[None, :], mixed, mask=inside)
        tl.store(lse + place, best + tl.log2(total), mask=real)  # -inf for one that saw nothing here


@triton.jit
def _work(work, program, programs, TOKENS: tl.constexpr, BLOCKS: tl.constexpr, RUNS: tl.constexpr):
    """The lane of a program, and the first of its tokens that it takes."""
    if RUNS:
        lane, first = tl.load(work + program), tl.load(work + programs + program)
    else:
        lane, first = program // BLOCKS, program % BLOCKS * TOKENS
    return lane.to(tl.int32), first.to(tl.int32)


@triton.jit
def _share(length, splits, BN: tl.constexpr, LEAST: tl.constexpr):
    """Tokens of context that each split takes, whole tiles."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), BN) * BN, LEAST)


@triton.jit
def _absorb(
    best, total, mixed, query, rest, start, end, at, t, real, table, keys, values, tree,
    k_page, k_place, v_page, v_place, scale,
    D: tl.constexpr, DV: tl.constexpr, PAGE: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr,
    MASKED: tl.constexpr, TREE: tl.constexpr, LATENT: tl.constexpr,
):  # fmt: skip
    """One tile of context. MASKED: some queries do not see all of it, or it reaches beyond the end."""
    n = start + tl.arange(0, BN)
    known = n < end
    page = (tl.load(table + n // PAGE, mask=known, other=0) if MASKED else tl.load(table + n // PAGE)).to(
        tl.int64
    )
    own = keys + page * k_page + n % PAGE * k_place
    KEYS: tl.constexpr = DV if LATENT else D
    key = _tile(own, known, 0, KEYS, BD, MASKED).to(query.dtype)
    scores = tl.dot(query, key.trans(1, 0), input_precision="tf32x3")
    if BR > 0:
        other = _tile(own, known, DV, D, BR, MASKED).to(query.dtype)
        scores = tl.dot(rest, other.trans(1, 0), scores, input_precision="tf32x3")
    scores *= scale
    if MASKED:
        if TREE:
            inside = real[:, None] & ((n >= at) & known)[None, :]
            seen = tl.load(tree[:, None] + (n - at)[None, :], mask=inside, other=0) != 0
            seen = seen | (n < at)[None, :]
        else:
            seen = n[None, :] <= (at + t)[:, None]
        scores = tl.where(seen & known[None, :], scores, float("-inf"))
    fresh = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(fresh == float("-inf"), 0.0, fresh)  # of a query that has seen nothing yet
    weight, fade = tl.exp2(scores - level[:, None]), tl.exp2(best - level)
    if LATENT:
        value = key
    else:
        value = _tile(values + page * v_page + n % PAGE * v_place, known, 0, DV, BV, MASKED).to(query.dtype)
    mixed = tl.dot(weight.to(value.dtype), value, mixed * fade[:, None], input_precision="tf32x3")
    return fresh, total * fade + tl.sum(weight, 1), mixed


@triton.jit
def _tile(places, known, FIRST: tl.constexpr, LAST: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """Channels FIRST to LAST of some places [BN, WIDTH]; zero where one is not known, whatever lies there."""
    channels = FIRST + tl.arange(0, WIDTH)
    where = places[:, None] + channels[None, :]
    FITS: tl.constexpr = LAST - FIRST == WIDTH
    if MASKED:
        return tl.load(where, mask=known[:, None] & (channels < LAST)[None, :], other=0.0)
    elif FITS:
        return tl.load(where)
    else:
        return tl.load(where, mask=(channels < LAST)[None, :], other=0.0)


@triton.jit(do_not_specialize=["splits"])
def join(
    partial, lse, out, work, rows, counts, offsets, position, splits,
    G: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BLOCKS: tl.constexpr, LEAST: tl.constexpr, RUNS: tl.constexpr, SOME: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For every (row of a block, key head, block of tokens): what its splits found, weighed; SOME at a time."""
    m, head, program = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    KH = tl.num_programs(1)
    lane, first = _work(work, program, tl.num_programs(2), BM // G, BLOCKS, RUNS)
    row, count = tl.load(rows + lane), tl.load(counts + lane).to(tl.int32)
    at, token = tl.load(position + lane).to(tl.int32), tl.load(offsets + lane)
    t = first + m // G
    follow(EARLY)
    if (row == 0) | (t >= count):
        return
    end = at + tl.minimum(first + BM // G, count)
    used = tl.cdiv(end, _share(end, splits, BN, LEAST))
    base = (program.to(tl.int64) * KH + head) * splits * BM + m
    e = tl.arange(0, BV)
    best, total = float("-inf"), 0.0
    mixed = tl.zeros((BV,), tl.float32)
    for start in range(0, used, SOME):
        split = start + tl.arange(0, SOME)
        exists = split < used
        level = tl.load(lse + base + split * BM, mask=exists, other=float("-inf"))
        inside = exists[:, None] & (e < DV)[None, :]
        part = tl.load(partial + (base + split * BM)[:, None] * DV + e[None, :], mask=inside, other=0.0)
        fresh = tl.maximum(best, tl.max(level, 0))  # finite from the first split on: it was seen by all
        weight, fade = tl.exp2(level - fresh), tl.exp2(best - fresh)
        total = total * fade + tl.sum(weight, 0)
        mixed = mixed * fade + tl.sum(weight[:, None] * part, 0)
        best = fresh
    place = (token + t) * (KH * G) + head * G + m % G
    tl.store(out + place * DV + e, mixed / total, mask=e < DV)
