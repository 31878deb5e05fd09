"""The convolution's Triton kernels against the reference: outputs, rings and slots, for windows and runs together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from holdfast.ops.backend import REFERENCE, Ops
from holdfast.ops.causal_conv import reference
from holdfast.ops.cursors.reference import Cursors, Standing
from holdfast.ops.gated_delta.front import DeltaInputs, DeltaWeights
from holdfast.ops.places import ConvState, ToKeep
from holdfast.ops.step import Export, StateStep

from .steps import BEHIND, DEVICE, Lane, assert_same, conv_pool, make_step, on_device, random_tree, seeded

pytest.importorskip("triton")
from holdfast.ops.causal_conv import triton as twin
from holdfast.ops.triton_backend import TritonOps

pytestmark = pytest.mark.gpu if DEVICE.type == "cuda" else []

LANES = [
    Lane(1, 1, position=20, base=16, slot=1),
    Lane(2, 3, position=33, base=16, slot=2),  # folds a line
    Lane(0, 2),  # padding
    Lane(3, 0, position=17, base=0, slot=3),  # only folds
    Lane(4, 4, position=1, base=0, slot=4),
    Lane(5, 30, position=0, base=0, slot=5),
    Lane(6, 17, position=18, base=0, slot=6),  # whose pending line is behind it
    Lane(0, 6),
    Lane(7, 5, position=17, base=16, slot=7),
    Lane(8, 150, position=35, base=32, slot=8),
]
EXPORTS = (Export(9, 11, 64), Export(9, 12, 128), Export(5, 13, 16))
FOLD_TO = [1, 10, 0, 3, 4, 5, 6, 0, 7, 8]


def pools(channels: int, width: int, seed: int, lanes: Sequence[Lane] = LANES) -> tuple[ConvState, ConvState]:
    """Filled with noise; the places that no lane may look at are NaN."""
    generator = seeded(seed)
    pool = conv_pool(8, 13, channels, width)
    for lane in lanes:
        if not lane.row:
            continue
        if lane.base:
            pool.saved[lane.slot] = torch.randn(width - 1, channels, generator=generator)
        capacity = pool.ring.shape[1]
        for position in range(max(lane.base, lane.position - capacity), lane.position):
            pool.ring[lane.row, position % capacity] = torch.randn(channels, generator=generator)
    other = ConvState(pool.saved.clone().to(DEVICE), pool.ring.clone().to(DEVICE))
    return pool, other


def agree(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def real_tokens(step: StateStep) -> Tensor:
    return (step.rows[step.lane_of(int(step.offsets[-1]))] > 0).cpu()


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_plain(width: int, biased: bool) -> None:
    channels = 37
    step = make_step(LANES, write_slots=FOLD_TO, exports=EXPORTS)
    pool, other = pools(channels, width, width)
    x = torch.randn(int(step.offsets[-1]), channels, generator=seeded(1))
    weight = torch.randn(channels, width, generator=seeded(2))
    bias = torch.randn(channels, generator=seeded(3)) if biased else None
    wanted = reference.causal_conv(x, weight, bias, pool, step)
    moved = None if bias is None else bias.to(DEVICE)
    got = twin.causal_conv(x.to(DEVICE), weight.to(DEVICE), moved, other, on_device(step))
    real = real_tokens(step)
    agree(got[real.to(DEVICE)], wanted[real])
    agree(other.saved, pool.saved)
    agree(other.ring, pool.ring)


@pytest.mark.parametrize("width", [2, 4])
def test_runs_that_catch_up_leave_what_the_reference_does(width: int) -> None:
    channels, step = 37, make_step(BEHIND)
    pool, other = pools(channels, width, width, BEHIND)
    x = torch.randn(int(step.offsets[-1]), channels, generator=seeded(1))
    weight = torch.randn(channels, width, generator=seeded(2))
    wanted = reference.causal_conv(x, weight, None, pool, step)
    agree(twin.causal_conv(x.to(DEVICE), weight.to(DEVICE), None, other, on_device(step)), wanted)
    agree(other.saved, pool.saved)
    agree(other.ring, pool.ring)


@pytest.mark.parametrize("width", [2, 4])
def test_windows_keep_what_they_would_if_they_were_convolved(width: int) -> None:
    """By the reference as well; when cursors move, as they would."""
    channels, windows = 300, LANES[:5]
    step = make_step(windows, write_slots=FOLD_TO[:5])
    pool, other = pools(channels, width, width)
    third = ConvState(other.saved.clone(), other.ring.clone())
    x = torch.randn(int(step.offsets[-1]), channels, generator=seeded(1))
    reference.causal_conv(x, torch.ones(channels, width), None, pool, step)
    step, rows = on_device(step), 2 + int(step.rows.max())
    stood = Standing(step.position, step.base, step.read_slot, step.end_base, step.write_slot)
    ones = torch.ones_like(step.rows)
    moved = [Cursors(*torch.full((6, rows), 5, device=DEVICE)) for _ in range(3)]
    wanted = TritonOps().commit(moved[0], step.rows, stood, ones)
    for ops, at, kept in ((TritonOps(), moved[1], other), (REFERENCE, moved[2], third)):
        committed = ops.commit_keeping(at, stood, ones, ToKeep(x.to(DEVICE), kept), step)
        agree(kept.saved, pool.saved)
        agree(kept.ring, pool.ring)
        assert_same(committed, wanted)
        assert_same(at, moved[0])


@pytest.mark.parametrize("width", [2, 4])
def test_in_a_tree_a_node_sees_its_ancestors_only(width: int) -> None:
    channels = 5
    step = make_step(LANES, write_slots=FOLD_TO, exports=EXPORTS, tree=random_tree(LANES, width))
    pool, other = pools(channels, width, width)
    x = torch.randn(int(step.offsets[-1]), channels, generator=seeded(1))
    weight = torch.randn(channels, width, generator=seeded(2))
    wanted = reference.causal_conv(x, weight, None, pool, step)
    got = twin.causal_conv(x.to(DEVICE), weight.to(DEVICE), None, other, on_device(step))
    real = real_tokens(step)
    agree(got[real.to(DEVICE)], wanted[real])
    agree(other.saved, pool.saved)
    agree(other.ring, pool.ring)


def test_short_conv() -> None:
    channels, width = 24, 3
    step = make_step(LANES, write_slots=FOLD_TO, exports=EXPORTS)
    pool, other = pools(channels, width, 5)
    gated = torch.randn(int(step.offsets[-1]), 3 * channels, generator=seeded(1))
    weight = torch.randn(channels, width, generator=seeded(2))
    wanted = Ops().short_conv(gated, weight, None, pool, step)
    got = twin.short_conv(gated.to(DEVICE), weight.to(DEVICE), None, other, on_device(step))
    real = real_tokens(step)
    agree(got[real.to(DEVICE)], wanted[real])
    agree(other.saved, pool.saved)
    agree(other.ring, pool.ring)


def test_delta_front() -> None:
    heads, key_dim, value_heads, value_dim, width = 2, 8, 4, 8, 4
    ops = Ops()
    values = value_heads * value_dim
    channels = 2 * heads * key_dim + values
    step = make_step(LANES, write_slots=FOLD_TO, exports=EXPORTS)
    pool, other = pools(channels, width, 7)
    tokens = int(step.offsets[-1])
    wide = torch.randn(
        tokens, channels + 2 * value_heads + 3, generator=seeded(1)
    )  # views of a wider projection
    a, b = (
        wide[:, channels : channels + value_heads],
        wide[:, channels + value_heads : channels + 2 * value_heads],
    )
    weights = DeltaWeights(
        torch.randn(channels, width, generator=seeded(2)),
        torch.randn(value_heads, generator=seeded(3)),
        10 * torch.randn(value_heads, generator=seeded(4)),
        2.0,
    )
    mixed = ops.silu(reference.causal_conv(wide[:, :channels], weights.conv, None, pool, step))
    qk = ops.l2_norm(mixed[:, : channels - values].unflatten(-1, (2, heads, key_dim)))
    there = wide.to(DEVICE)
    inputs = DeltaInputs(
        there[:, :channels],
        there[:, channels + value_heads : channels + 2 * value_heads],
        there[:, channels : channels + value_heads],
    )
    moved = DeltaWeights(*(x.to(DEVICE) for x in (weights.conv, weights.a_log, weights.dt_bias)), 2.0)
    got_qk, got_v, log_g, beta = twin.delta_front(
        inputs, moved, other, on_device(step), key_dim=key_dim, values=values
    )
    real = real_tokens(step)
    there_real = real.to(DEVICE)
    agree(got_qk[there_real], qk[real])
    agree(got_v[there_real], mixed[real, channels - values :])
    agree(log_g, -weights.a_log.exp() * ops.softplus(a + weights.dt_bias))
    agree(beta, 2.0 * b.sigmoid())
    agree(other.saved, pool.saved)
    agree(other.ring, pool.ring)
