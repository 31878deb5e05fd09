"""The causal convolution over rings and slots, against torch's conv1d over the whole sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from holdfast.ops.causal_conv.reference import causal_conv
from holdfast.ops.places import ConvState
from holdfast.ops.step import Export

from .steps import GRID, WINDOW, Lane, conv_pool, make_step, same_bits, seeded

CHANNELS = 5
widths = pytest.mark.parametrize("width", [2, 3, 4])
biases = pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])


def weights(width: int, biased: bool) -> tuple[Tensor, Tensor | None]:
    weight = torch.randn(CHANNELS, width, generator=seeded(width))
    return weight, torch.randn(CHANNELS, generator=seeded(99)) if biased else None


def whole(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[n, channels] -> [n, channels] in float64, zeros before the start"""
    padded = F.pad(x.double().T[None], (weight.shape[1] - 1, 0))
    wide = None if bias is None else bias.double()
    return F.conv1d(padded, weight.double()[:, None], wide, groups=len(weight))[0].T


def sequence(length: int, seed: int) -> Tensor:
    return torch.randn(length, CHANNELS, generator=seeded(seed))


def before(x: Tensor, position: int, width: int) -> Tensor:
    """The width - 1 inputs before `position`, zero before the first."""
    return F.pad(x, (0, 0, width - 1, 0))[position : position + width - 1]


def install(pool: ConvState, lane: Lane, x: Tensor, width: int) -> None:
    """What steps until `lane.position` would have left behind: no more than that, and NaN around it."""
    if lane.base:
        pool.saved[lane.slot] = before(x, lane.base, width)
    capacity = pool.ring.shape[1]
    for position in range(max(lane.base, lane.position - capacity), lane.position):
        pool.ring[lane.row, position % capacity] = x[position]


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=2e-6)


@widths
@biases
def test_one_fresh_sequence(width: int, biased: bool) -> None:
    """In a slot and a ring full of NaN."""
    (weight, bias), x = weights(width, biased), sequence(40, 1)
    pool = conv_pool(1, 1, CHANNELS, width)
    out = causal_conv(x, weight, bias, pool, make_step([Lane(1, 40, slot=1)]))
    assert out.dtype == torch.float32
    close(out, whole(x, weight, bias))
    assert same_bits(pool.saved[1], before(x, 32, width))


@widths
@biases
def test_one_sequence_in_pieces(width: int, biased: bool) -> None:
    """Windows and runs of any size give what the whole gives, lines and rings included."""
    (weight, bias), x = weights(width, biased), sequence(200, 2)
    pool = conv_pool(1, 1, CHANNELS, width)
    position = base = 0
    wanted = whole(x, weight, bias)
    for count in (1, 1, 2, 4, 4, 4, 4, 0, 3, 30, 1, 4, 4, 60, 2, 0, 64):
        lane = Lane(1, count, position, base, slot=1)
        out = causal_conv(x[position : position + count], weight, bias, pool, make_step([lane]))
        close(out, wanted[position : position + count])
        position, base = position + count, lane.end_base(GRID)
        if base:
            assert same_bits(pool.saved[1], before(x, base, width)), f"inputs before line {base}"


@widths
@biases
def test_fresh_and_continued_sequences_in_one_call(width: int, biased: bool) -> None:
    """Windows and runs, cold, resumed at a line and in the middle of a journal, with padding between them."""
    weight, bias = weights(width, biased)
    pool = conv_pool(8, 8, CHANNELS, width)
    lanes = [
        Lane(1, 3, slot=1),
        Lane(2, 4, 32, 32, slot=2),
        Lane(0, 4),
        Lane(3, 1, 41, 32, slot=3),
        Lane(4, 2, 35, 16, slot=4),  # folds line 32
        Lane(5, 20, slot=5),
        Lane(0, 9),
        Lane(6, 7, 64, 64, slot=6),  # short of the next line
        Lane(7, 50, 65, 64, slot=7),
        Lane(8, 6, 19, 0, slot=8),  # its only line lies behind it
    ]
    step = make_step(lanes)
    histories = [sequence(lane.position + lane.count, 10 + i) for i, lane in enumerate(lanes)]
    fresh = []
    for lane, x in zip(lanes, histories, strict=True):
        if lane.row:
            install(pool, lane, x, width)
        fresh.append(x[lane.position :] if lane.row else torch.full((lane.count, CHANNELS), torch.nan))
    out = causal_conv(torch.cat(fresh), weight, bias, pool, step)
    for lane, x, first in zip(lanes, histories, step.offsets.tolist()[:-1], strict=True):
        got = out[first : first + lane.count]
        if not lane.row:
            assert got.isnan().all()
            continue
        close(got, whole(x, weight, bias)[lane.position :])
        if lane.end_base(GRID) > lane.base:
            assert same_bits(pool.saved[lane.slot], before(x, lane.end_base(GRID), width)), lane
        capacity = pool.ring.shape[1]
        for position in range(max(lane.position, len(x) - WINDOW - width + 1), len(x)):
            assert same_bits(pool.ring[lane.row, position % capacity], x[position]), lane
    assert pool.saved[0].isnan().all() and pool.ring[0].isnan().all()


@widths
def test_exports_leave_the_inputs_before_each_line(width: int) -> None:
    weight, _ = weights(width, False)
    x = sequence(200, 3)
    pool = conv_pool(2, 6, CHANNELS, width)
    lanes = [Lane(1, 130, slot=1), Lane(2, 70, slot=2)]
    exports = (Export(0, 3, 64), Export(1, 4, 64), Export(0, 5, 128))
    causal_conv(x, weight, None, pool, make_step(lanes, exports=exports))
    first, second = x[:130], x[130:]
    for slot, mine, line in (
        (3, first, 64),
        (5, first, 128),
        (1, first, 128),
        (4, second, 64),
        (2, second, 64),
    ):
        assert same_bits(pool.saved[slot], before(mine, line, width)), (slot, line)
    assert pool.saved[6].isnan().all()


def test_a_fold_may_go_to_another_slot_and_leaves_the_one_it_read() -> None:
    weight, _ = weights(4, False)
    x, pool = sequence(36, 4), conv_pool(1, 2, CHANNELS, 4)
    lane = Lane(1, 1, 35, 16, slot=1)
    install(pool, lane, x, 4)
    causal_conv(x[35:], weight, None, pool, make_step([lane], write_slots=[2]))
    assert same_bits(pool.saved[1], before(x, 16, 4)) and same_bits(pool.saved[2], before(x, 32, 4))


def test_inputs_in_bfloat16_are_kept_as_they_are() -> None:
    weight, _ = weights(3, False)
    x, pool = sequence(20, 5).bfloat16(), conv_pool(1, 1, CHANNELS, 3, torch.bfloat16)
    out = causal_conv(x, weight, None, pool, make_step([Lane(1, 20, slot=1)]))
    assert out.dtype == torch.float32
    close(out, whole(x, weight, None))
    assert same_bits(pool.saved[1], before(x, 16, 3))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.data())
def test_any_pieces_of_any_sequences(data: st.DataObject) -> None:
    """A few rows, each cut anywhere, together in one call or not."""
    width, grid = data.draw(st.integers(2, 5)), data.draw(st.sampled_from([1, 2, 8, 16]))
    weight = torch.randn(CHANNELS, width, generator=seeded(0))
    rows = data.draw(st.integers(1, 3))
    pool = conv_pool(rows, rows, CHANNELS, width)
    xs = {row: sequence(200, row) for row in range(1, rows + 1)}
    wanted = {row: whole(x, weight, None) for row, x in xs.items()}
    lanes = {row: Lane(row, 0, slot=row) for row in xs}
    sizes = st.one_of(st.integers(0, min(WINDOW, grid)), st.integers(WINDOW + 1, 30))
    for _ in range(data.draw(st.integers(1, 6))):
        chosen = data.draw(st.lists(st.sampled_from(sorted(xs)), unique=True))
        for row in chosen:
            lanes[row] = replace(lanes[row], count=data.draw(sizes))
        work = sorted((lanes[row] for row in chosen), key=lambda lane: lane.is_run)
        step = make_step(work, grid=grid)
        x = torch.cat([sequence(0, 0), *(xs[w.row][w.position : w.position + w.count] for w in work)])
        out = causal_conv(x, weight, None, pool, step)
        for w, first in zip(work, step.offsets.tolist()[:-1], strict=True):
            close(out[first : first + w.count], wanted[w.row][w.position : w.position + w.count])
            lanes[w.row] = replace(w, count=0, position=w.position + w.count, base=w.end_base(grid))
