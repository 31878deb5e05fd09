from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.distributed.group import Group, Shard


def test_a_group_of_one_changes_nothing() -> None:
    x = torch.randn(3, 4)
    assert Group().all_reduce(x) is x
    assert Group().all_gather(x, 0) is x
    assert torch.equal(Shard(1, (1, 3), Group()).take(x), x)


def test_more_ranks_say_that_they_cannot_talk_yet() -> None:
    with pytest.raises(NotImplementedError, match="all_reduce among 2 ranks"):
        Group(0, 2).all_reduce(torch.zeros(1))
    with pytest.raises(NotImplementedError, match="all_gather among 2 ranks"):
        Group(0, 2).all_gather(torch.zeros(1), 0)


class Ranks(Group):
    """Ranks in one process: what the others hold is worked out from what this one holds."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x * self.size


def test_a_subclass_may_talk() -> None:
    assert Ranks(1, 4).all_reduce(torch.ones(1)).item() == 4


@pytest.mark.parametrize(("rank", "size"), [(-1, 1), (1, 1), (0, 0)])
def test_a_rank_is_in_its_group(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="is not one of the"):
        Group(rank, size)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_section_is_divided_by_itself(axis: int, size: int) -> None:
    x = torch.arange(12 * 12 * 12).reshape(12, 12, 12)
    shards = [Shard(axis, (6, 6), Group(rank, size)) for rank in range(size)]
    pieces = [shard.take(x) for shard in shards]
    assert all(piece.shape[axis] == shard.local_size for piece, shard in zip(pieces, shards, strict=True))
    halves = [[piece.narrow(axis, i * 6 // size, 6 // size) for piece in pieces] for i in range(2)]
    assert torch.equal(torch.cat(halves[0] + halves[1], dim=axis), x)


def test_a_part_must_divide() -> None:
    with pytest.raises(
        ValueError, match=r"axis 0 of 8\+6 cannot be divided: 6 is not a multiple of the 4 ranks"
    ):
        Shard(0, (8, 6), Group(0, 4))
    with pytest.raises(ValueError, match="counted from the front"):
        Shard(-1, (8,), Group())
