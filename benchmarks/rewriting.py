"""The ways that other engines keep the state of a gated delta layer, in Triton, to be measured beside the journal.

read-modify-write  reads the whole state and writes it back, every token
snapshots          writes one whole state per draft token, then scatters the accepted one back
layer              read-modify-write from projections on: one launch for the convolution, then one for the rest
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def recurrent(
    qk, v, log_g, beta, out, saved, snapshots, slots,
    T: tl.constexpr, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    SNAPSHOTS: tl.constexpr,
):  # fmt: skip
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channels, values = tl.arange(0, K), block * BV + tl.arange(0, BV)
    key_head = head // (HV // H)
    tile = channels[:, None] * V + values
    home = saved + (tl.load(slots + lane).to(tl.int64) * HV + head) * K * V + tile
    state = tl.load(home).to(tl.float32)
    for t in tl.static_range(T):
        token = lane.to(tl.int64) * T + t
        query = tl.load(qk + (token * 2 * H + key_head) * K + channels).to(tl.float32)
        key = tl.load(qk + ((token * 2 + 1) * H + key_head) * K + channels).to(tl.float32)
        value = tl.load(v + (token * HV + head) * V + values).to(tl.float32)
        state *= tl.exp(tl.load(log_g + token * HV + head))
        add = tl.load(beta + token * HV + head) * (value - tl.sum(state * key[:, None], 0))
        state += key[:, None] * add[None, :]
        tl.store(out + (token * HV + head) * V + values, tl.sum(state * query[:, None], 0))
        if SNAPSHOTS:
            tl.store(snapshots + (token * HV + head) * K * V + tile, state.to(saved.dtype.element_ty))
    if not SNAPSHOTS:
        tl.store(home, state.to(saved.dtype.element_ty))


@triton.jit
def scatter(saved, snapshots, slots, accepted, T: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    block, lane = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    last = lane.to(tl.int64) * T + tl.load(accepted + lane) - 1
    state = tl.load(snapshots + last * SIZE + at)
    tl.store(saved + tl.load(slots + lane).to(tl.int64) * SIZE + at, state)


@triton.jit
def convolution(
    qkv, weight, inputs, mixed, slots, qkv_stride,
    C: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """silu(convolution) of one token; inputs [slots, W - 1, C] move on by one"""
    block, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channels = block * BLOCK + tl.arange(0, BLOCK)
    held = inputs + tl.load(slots + lane).to(tl.int64) * (W - 1) * C + channels
    own = tl.load(qkv + lane * qkv_stride + channels)
    acc = own.to(tl.float32) * tl.load(weight + channels * W + W - 1).to(tl.float32)
    for j in tl.static_range(W - 1):
        value = tl.load(held + j * C)
        acc += value.to(tl.float32) * tl.load(weight + channels * W + j).to(tl.float32)
        if j:
            tl.store(held + (j - 1) * C, value)
    tl.store(held + (W - 2) * C, own)
    tl.store(mixed + lane * C + channels, (acc * tl.sigmoid(acc)).to(mixed.dtype.element_ty))


@triton.jit
def layer(
    mixed, a, b, a_log, dt_bias, out, saved, slots, a_stride, b_stride, scale, eps,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Norms and gates in every program that needs them, then the rule."""
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    C: tl.constexpr = 2 * H * K + HV * V
    channels, values = tl.arange(0, K), block * BV + tl.arange(0, BV)
    key_head = head // (HV // H)
    tile = channels[:, None] * V + values
    home = saved + (tl.load(slots + lane).to(tl.int64) * HV + head) * K * V + tile
    state = tl.load(home).to(tl.float32)
    query = tl.load(mixed + lane * C + key_head * K + channels).to(tl.float32)
    key = tl.load(mixed + lane * C + (H + key_head) * K + channels).to(tl.float32)
    value = tl.load(mixed + lane * C + 2 * H * K + head * V + values).to(tl.float32)
    raw = tl.load(a + lane * a_stride + head).to(tl.float32) + tl.load(dt_bias + head)
    soft = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(tl.minimum(raw, 20.0))))
    strength = tl.sigmoid(tl.load(b + lane * b_stride + head).to(tl.float32))
    query *= scale * tl.rsqrt(tl.sum(query * query) + eps)
    key *= tl.rsqrt(tl.sum(key * key) + eps)
    state *= tl.exp(-tl.exp(tl.load(a_log + head)) * soft)
    add = strength * (value - tl.sum(state * key[:, None], 0))
    state += key[:, None] * add[None, :]
    tl.store(out + (lane * HV + head) * V + values, tl.sum(state * query[:, None], 0))
    tl.store(home, state.to(saved.dtype.element_ty))


@triton.jit
def read(saved, slots, sums, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The state, and nothing else."""
    block, lane = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(saved + tl.load(slots + lane).to(tl.int64) * SIZE + at)
    if tl.sum(state.to(tl.float32)) == 1234567.0:  # never, but the loads must happen
        tl.store(sums, 1.0)
