"""What follows one another in a pool is read where it lies; the values are those of a gather."""

from __future__ import annotations

import pytest
import torch

from holdfast.ops.places import Checkpoints, Context

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
