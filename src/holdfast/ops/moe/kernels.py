"""Mixture of experts, in Triton: route, sort by expert, two products, and the sum of what a token's experts said.

A *pair* is a token and one of its chosen places, numbered as `experts` lies in memory. `sort` lists the pairs of each
expert in order. A product then reads every weight of the experts that someone chose, once for each block of rows:
with few tokens that is all that takes time. Nothing is added by more than one program, so sums have one order, and
nothing is asked of the device: what depends on counts ends by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def route(
    logits, bias,  # [tokens, E], [E]
    experts, weights,  # [tokens, CHOSEN] int64 and float32
    logits_token, eps, scale,
    E: tl.constexpr, CHOSEN: tl.constexpr, GROUPS: tl.constexpr, OPEN: tl.constexpr,
    SIGMOID: tl.constexpr, BIASED: tl.constexpr, NORMALISED: tl.constexpr,
    BE: tl.constexpr, BC: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """For every token: its experts, the best first, and how much each counts. Of equals, the first is better.

    A token whose logits are NaN gets experts that exist.
    """
    token = tl.program_id(0).to(tl.int64)
    e, c = tl.arange(0, BE), tl.arange(0, BC)
    x = tl.load(logits + token * logits_token + e, mask=e < E, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        scores = tl.sigmoid(x)
    else:
        scores = tl.exp(x - tl.max(x, 0))
        scores = scores / tl.sum(scores, 0)
    merit = scores
    if BIASED:
        merit += tl.load(bias + e, mask=e < E, other=0.0).to(tl.float32)
    merit = tl.where((e < E) & (merit == merit), merit, float("-inf"))
    if GROUPS > 1:
        merit = _in_best_groups(merit, e, E // GROUPS, GROUPS, OPEN, BG)
    chosen = tl.zeros((BC,), tl.int32)
    weight = tl.zeros((BC,), tl.float32)
    for place in tl.static_range(CHOSEN):
        best = tl.argmax(merit, 0)
        chosen = tl.where(c == place, best, chosen)
        weight = tl.where(c == place, tl.sum(tl.where(e == best, scores, 0.0), 0), weight)
        merit = tl.where(e == best, float("-inf"), merit)
    if NORMALISED:
        weight = weight / (tl.sum(weight, 0) + eps)
    tl.store(experts + token * CHOSEN + c, chosen, mask=c < CHOSEN)
    tl.store(weights + token * CHOSEN + c, weight * scale, mask=c < CHOSEN)


@triton.jit
def _in_best_groups(merit, e, SIZE: tl.constexpr, GROUPS: tl.constexpr, OPEN: tl.constexpr, BG: tl.constexpr):
    """-inf outside the OPEN groups whose best two experts are together the best"""
    group, g = e // SIZE, tl.arange(0, BG)
    votes = tl.full((BG,), float("-inf"), tl.float32)
    for number in tl.static_range(GROUPS):
        own = tl.where(group == number, merit, float("-inf"))
        second = tl.max(tl.where(e == tl.argmax(own, 0), float("-inf"), own), 0)
        votes = tl.where(g == number, tl.max(own, 0) + second, votes)
    is_open = group < 0
    for _ in tl.static_range(OPEN):
        best = tl.argmax(votes, 0)
        is_open = is_open | (group == best)
        votes = tl.where(g == best, float("-inf"), votes)
    return tl.where(is_open, merit, float("-inf"))


@triton.jit(do_not_specialize=["pairs"])
def sort(
    experts,  # [pairs]
    order, begins,  # [pairs], [E + 1] int32: the pairs by expert, and where each expert's begin
    pairs,
    BP: tl.constexpr,
):  # fmt: skip
    """For every expert, and one beyond the last: counts the pairs of those before it, and lists its own."""
    expert = tl.program_id(0)
    begin, count = 0, 0
    for start in range(0, pairs, BP):
        pair = start + tl.arange(0, BP)
        chosen = tl.load(experts + pair, mask=pair < pairs, other=expert + 1)
        begin += tl.sum((chosen < expert).to(tl.int32), 0)
        count += tl.sum((chosen == expert).to(tl.int32), 0)
    tl.store(begins + expert, begin)
    if count > 0:
        for start in range(0, pairs, BP):
            pair = start + tl.arange(0, BP)
            own = (tl.load(experts + pair, mask=pair < pairs, other=expert + 1) == expert).to(tl.int32)
            tl.store(order + begin + tl.cumsum(own, 0) - own, pair, mask=own > 0)
            begin += tl.sum(own, 0)


@triton.jit
def product(
    x,  # [tokens, K] if UP, else [pairs, K] by expert
    weight,  # [E, N or 2 N, K]
    out,  # [pairs, N]: by expert if UP, else as pairs are numbered
    experts, order, begins,
    x_row, w_expert, w_row,
    N: tl.constexpr, K: tl.constexpr, CHOSEN: tl.constexpr,
    UP: tl.constexpr, GATED: tl.constexpr, BY_PAIR: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """For every (block of N, expert, every so many blocks of its rows): x @ weight^T.

    UP       and then silu(first N) * (last N) if GATED, else relu^2
    BY_PAIR  there are fewer pairs than experts: the first pair of each expert stands for it
    """
    tile, which, turn = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if BY_PAIR:
        expert = tl.load(experts + tl.load(order + which))
        begin = tl.load(begins + expert)
        if begin != which:
            return
    else:
        expert = which.to(tl.int64)
        begin = tl.load(begins + expert)
    end = tl.load(begins + expert + 1)
    n, k = tile * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = n if N % BN == 0 else tl.minimum(n, N - 1)  # what is read twice is not stored
    own = weight + expert * w_expert + row[:, None].to(tl.int64) * w_row + k[None, :]
    for first in range(begin + turn * BM, end, tl.num_programs(2) * BM):
        m = first + tl.arange(0, BM)
        pair = tl.load(order + m, mask=m < end, other=0)
        source = (pair // CHOSEN if UP else tl.minimum(m, end - 1)).to(tl.int64)
        source = x + source[:, None] * x_row + k[None, :]
        sums = tl.zeros((BM, BN), tl.float32)
        gated = tl.zeros((BM, BN), tl.float32)
        for done in range(0, K, BK):
            if K % BK == 0:
                read, first_half = tl.load(source + done), tl.load(own + done)
            else:
                inside = (done + k < K)[None, :]
                read = tl.load(source + done, mask=inside, other=0.0)
                first_half = tl.load(own + done, mask=inside, other=0.0)
            sums = tl.dot(read, first_half.trans(1, 0), sums, input_precision="tf32x3")
            if GATED:
                last = own + N * w_row + done
                last_half = tl.load(last) if K % BK == 0 else tl.load(last, mask=inside, other=0.0)
                gated = tl.dot(read, last_half.trans(1, 0), gated, input_precision="tf32x3")
        if UP:
            above = tl.maximum(sums, 0.0)
            sums = sums * tl.sigmoid(sums) * gated if GATED else above * above
        target = (m if UP else pair).to(tl.int64)
        inside = (m < end)[:, None] & (n < N)[None, :]
        tl.store(out + target[:, None] * N + n[None, :], sums, mask=inside)


@triton.jit
def mix(
    said, weights, out,  # [pairs, WIDTH], [pairs], [tokens, WIDTH]
    WIDTH: tl.constexpr, CHOSEN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """For every (token, block of channels): what its experts said, weighted, added in their order."""
    token, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BW + tl.arange(0, BW)
    inside = channel < WIDTH
    total = tl.zeros((BW,), tl.float32)
    for place in tl.static_range(CHOSEN):
        pair = token * CHOSEN + place
        word = tl.load(said + pair * WIDTH + channel, mask=inside, other=0.0).to(tl.float32)
        total += word * tl.load(weights + pair)
    tl.store(out + token * WIDTH + channel, total, mask=inside)
