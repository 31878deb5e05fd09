"""The Triton kernels that read and move cursors against the reference: every lane, and no row that has none."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from holdfast.ops.cursors import reference
from holdfast.ops.cursors.reference import Cursors, Standing

from .steps import GRID, WINDOW, assert_same, seeded

pytest.importorskip("triton")
from holdfast.ops.cursors import triton as twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POISON = -(1 << 40)
"""Of rows that no lane has, and of what a padded lane is told: none of it may show."""
LANES = [1, 2, 7, 33]


def copied(at: Cursors) -> Cursors:
    return replace(at, **{field.name: getattr(at, field.name).clone() for field in fields(at)})


def drawn(lanes: int, num_windows: int, seed: int) -> tuple[Cursors, Tensor, Tensor]:
    """Cursors of twice as many rows, with lanes of all kinds: cold, about to fold, granted a line that the step folds
    or passes by or does not reach, and a padded one at the end of windows and of runs."""
    draw = seeded(seed)

    def below(bound: int, count: int) -> Tensor:
        return torch.randint(bound, (count,), generator=draw)

    rows = 1 + torch.randperm(2 * lanes, generator=draw)[:lanes]
    if lanes > 2:
        rows[lanes - 1] = rows[num_windows - 1] = 0
    windows = torch.arange(lanes) < num_windows
    counts = torch.where(windows, below(WINDOW + 1, lanes), WINDOW + 1 + below(5 * GRID, lanes)) * (rows > 0)
    at = Cursors(*torch.full((6, 2 * lanes + 1), POISON))
    for cursor in (at.own_slot, at.read_slot, at.base, at.length, at.grant_slot, at.grant_line):
        cursor[0] = 0
    real = rows[rows > 0]
    at.own_slot[real], at.read_slot[real] = 1 + below(90, len(real)), 1 + below(90, len(real))
    at.base[real], at.length[real] = GRID * below(4, len(real)), below(GRID + WINDOW, len(real))
    at.grant_slot[real] = (100 + below(90, len(real))) * below(3, len(real)).clamp(max=1)
    at.grant_line[real] = at.base[real] + GRID * (below(4, len(real)) - 1)
    return Cursors(*(getattr(at, f.name).to(DEVICE) for f in fields(at))), rows.to(DEVICE), counts.to(DEVICE)


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_stand_where_the_reference_says(lanes: int) -> None:
    for seed in range(4):
        for num_windows in {0, (lanes + 1) // 2, lanes}:
            at, rows, counts = drawn(lanes, num_windows, seed)
            before = copied(at)
            got = twin.begin(at, rows, counts, num_windows=num_windows, grid=GRID)
            assert_same(got, reference.begin(at, rows, counts, num_windows=num_windows, grid=GRID))
            assert_same(at, before)


@pytest.mark.parametrize("lanes", LANES)
def test_cursors_move_as_the_reference_moves_them(lanes: int) -> None:
    used = missed = 0
    for seed in range(4):
        num_windows = (lanes + 1) // 2
        at, rows, counts = drawn(lanes, num_windows, seed)
        stood = reference.begin(at, rows, counts, num_windows=num_windows, grid=GRID)
        accepted = torch.where(rows > 0, (counts - seed).clamp(min=0), POISON)
        expected, moved = copied(at), copied(at)
        wanted = reference.commit(expected, rows, stood, accepted)
        assert_same(twin.commit(moved, rows, stood, accepted), wanted)
        assert_same(moved, expected)
        used, missed = used + int(wanted.used.sum()), missed + int(wanted.missed.sum())
    assert lanes < 33 or (used and missed), "no grant was used, or none was passed by"


def test_a_padded_lane_moves_nothing() -> None:
    at = Cursors(*torch.arange(18, device=DEVICE).view(6, 3))
    before, rows = copied(at), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    stood = Standing(*torch.full((5, 2), 77, device=DEVICE))
    twin.commit(at, rows, stood, torch.full((2,), POISON, device=DEVICE))
    assert_same(at, before)


@pytest.mark.parametrize("apart", [None, 4], ids=["as-long-as-its-work", "uniform"])
def test_tokens_and_their_places(apart: int | None) -> None:
    """Of a uniform step some tokens are nobody's: they are row 0's, whatever stands there."""
    counts = torch.tensor([3, 0, 1, 150 if apart is None else 4, 0, 2], device=DEVICE)
    rows = torch.tensor([2, 5, 7, 1, 0, 3], device=DEVICE)
    position = torch.tensor([9, 40, 0, 17, 0, 198], device=DEVICE)
    table = torch.randint(1000, (8, 200), generator=seeded(3)).to(DEVICE)
    room = counts if apart is None else torch.full_like(counts, apart)
    lane = torch.arange(len(rows), device=DEVICE).repeat_interleave(room)
    offset = torch.arange(len(lane), device=DEVICE) - (room.cumsum(0) - room)[lane]
    if apart is not None:
        position[-1] = 196  # where a uniform step looks, there is a table
    got = twin.absorbed(table, rows, counts, position, lane, offset)
    wanted = reference.absorbed(table, rows, counts, position, lane, offset)
    assert all(map(torch.equal, got, wanted))
    assert int((got[0] > 0).sum()) == int(counts[rows > 0].sum())


def test_no_tokens() -> None:
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    row, where, token = twin.absorbed(none[None].expand(3, 0), none, none, none, none, none)
    assert row.shape == where.shape == token.shape == (0,)
