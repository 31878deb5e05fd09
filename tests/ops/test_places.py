"""What follows one another in a pool is read where it lies; the values are those of a gather."""

from __future__ import annotations

import pytest
import torch

from holdfast.ops.linear_attention import recall
from holdfast.ops.places import Cells, Checkpoints, Context, Scattered, TemporalState

SLOTS = {
    "consecutive": [3, 4, 5],
    "one": [6],
    "reversed": [5, 4, 3],
    "with a gap": [3, 5, 6],
    "twice the same": [4, 4],
    "none": [],
}


def checkpoints(slots: list[int], position: list[int]) -> Checkpoints:
    rows = torch.arange(1, len(slots) + 1)
    return Checkpoints(rows, torch.tensor(slots, dtype=torch.int64), torch.tensor(position))


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS.keys())
def test_checkpoints(slots: list[int]) -> None:
    saved = torch.arange(16.0).reshape(8, 2)
    read = checkpoints(slots, [16] * len(slots)).read(saved)
    assert torch.equal(read, saved[torch.tensor(slots, dtype=torch.int64)])
    viewed = slots in ([3, 4, 5], [6])
    assert (read.untyped_storage().data_ptr() == saved.untyped_storage().data_ptr()) == viewed


@pytest.mark.parametrize("slots", [[3, 5, 6], [5, 4, 3], [4, 4], [6, 1, 2, 3]])
def test_states_that_lie_apart_are_read_where_they_lie(slots: list[int]) -> None:
    pool = TemporalState(torch.randn(8, 2, 3, 5), journal={})
    found, alike = pool.load(checkpoints(slots, [16] * len(slots))), pool.saved[slots]
    assert isinstance(found, Scattered) and found.stored is pool.saved
    assert torch.equal(found.gathered(), alike)
    probes = torch.randn(len(slots), 2, 4, 5)
    torch.testing.assert_close(recall(probes, found), probes @ alike.mT)
    assert isinstance(pool.load(checkpoints(slots, [0] * len(slots))), torch.Tensor), "where there is none"


def test_a_slot_is_not_looked_at_where_there_is_no_checkpoint() -> None:
    saved = torch.full((8, 2), torch.nan)
    saved[4] = 1.0
    read = checkpoints([3, 4, 5], [0, 16, 0]).read(saved)
    assert torch.equal(read, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    assert saved[[3, 5]].isnan().all(), "nor written"


@pytest.mark.parametrize("pages", SLOTS.values(), ids=SLOTS.keys())
def test_contexts(pages: list[int]) -> None:
    stored, length = torch.randn(8, 4, 2, 3), max(0, 4 * len(pages) - 1)
    read = Context(1, length, torch.tensor(pages, dtype=torch.int64)).read(stored)
    assert torch.equal(
        read, torch.cat([stored[:0].flatten(0, 1), *(stored[p] for p in pages)])[:length].transpose(0, 1)
    )


@pytest.mark.parametrize("width", [(3,), (2, 3)], ids=["channels", "heads"])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_cells(width: tuple[int, ...], count: int) -> None:
    """As a plain gather has them, and nothing where a place is empty, whatever lies there."""
    ring = torch.randn(3, 5, *width)
    rows, first = torch.tensor([1, 2]), torch.tensor([3, 1])
    where = rows[:, None] * 5 + (first[:, None] + torch.arange(count)) % 5
    expected = ring.flatten(0, 1)[where]
    empty = torch.arange(2 * count)[1::3]
    expected.flatten(0, 1)[empty] = 0
    ring.flatten(0, 1)[where.flatten()[empty]] = torch.nan
    cells = Cells(rows, first, count, where.flatten(), empty if len(empty) else None)
    for _ in range(2):  # the second time with what was kept of the first
        read = cells.read(ring)
        assert torch.equal(read, expected)
        assert len(width) == 1 or read.transpose(1, 2).is_contiguous(), "a head's tokens lie side by side"
