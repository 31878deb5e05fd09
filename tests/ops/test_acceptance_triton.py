"""The Triton kernel that accepts drafts against the reference: the same drafts, and the same table afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.ops.acceptance import reference
from holdfast.ops.acceptance.reference import Drafts

from .steps import seeded

pytest.importorskip("triton")
from holdfast.ops.acceptance import triton as twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, POSITIONS, LANES = 40, 64, 33


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def compare(
    drafts: Drafts, chosen: Tensor, table: Tensor, made: Tensor, at: Tensor, counts: Tensor
) -> Tensor:
    """Returns how many of each lane's drafts were accepted. What row 0 is told is dropped, in any order."""
    (expected, unmade), (found, emptied) = ((table.clone(), made.clone()) for _ in range(2))
    wanted = reference.accept(drafts, chosen, expected, unmade, at, counts)
    got = twin.accept(drafts, chosen, found, emptied, at, counts)
    for name in ("accepted", "proposed", "certain"):
        assert torch.equal(getattr(got, name), getattr(wanted, name)), name
    assert torch.equal(found[1:], expected[1:]) and torch.equal(emptied, unmade)
    return got.accepted


@pytest.mark.parametrize("most", [0, 1, 3, 7, 8])
def test_the_same_drafts_are_accepted(most: int) -> None:
    """Everything that a lane must not look at agrees as well: drafts that nobody made, and choices of neighbours."""
    draw = seeded(most)
    each = torch.randint(most + 1, (LANES,), generator=draw).to(DEVICE)
    known = torch.randint(1, 4, (LANES,), generator=draw).to(DEVICE)
    rows = (1 + torch.randperm(ROWS, generator=draw)[:LANES]).to(DEVICE)
    at = torch.randint(POSITIONS - 2 * most - 5, (LANES,), generator=draw).to(DEVICE)
    made = torch.randint(most + 3, (ROWS + 1,), generator=draw).to(DEVICE)
    chooses = torch.arange(LANES, device=DEVICE)[torch.randperm(LANES, generator=draw)[:20].sort().values]
    first = (each[chooses] + 1).cumsum(0) - each[chooses] - 1
    drafts = Drafts(chooses, each[chooses], first, rows[chooses], most)
    chosen = torch.zeros(int((drafts.drafts + 1).sum()), dtype=torch.int64, device=DEVICE)
    table = torch.zeros(ROWS + 1, POSITIONS, dtype=torch.int64, device=DEVICE)
    wrong = torch.randint(most + 2, (20,), generator=draw).to(DEVICE)  # which draft is, if there are so many
    table[rows[chooses], (at + known)[chooses] + wrong] = 9
    accepted = compare(drafts, chosen, table, made, at, known + each)
    assert torch.equal(accepted, torch.minimum(wrong, torch.minimum(drafts.drafts, made[drafts.tell])))


def test_lanes_of_a_uniform_step() -> None:
    """Apart by three tokens: full, short of one, with no choice, and padding."""
    drafts = Drafts(ids(0, 1, 2, 3), ids(2, 1, 0, 0), ids(0, 3, 6, 9), ids(5, 2, 0, 0), most=2)
    chosen = ids(1, 2, 3, 4, 5, -1, -1, -1, -1, -1, -1, -1)
    table = torch.full((8, 20), -1, dtype=torch.int64, device=DEVICE)
    table[5, 10:13], table[2, 8:10] = ids(7, 1, 2), ids(7, 4)
    made = ids(0, 0, 1, 0, 0, 2, 0, 0)
    accepted = compare(drafts, chosen, table, made, ids(10, 8, 4, 0), ids(3, 2, 1, 0))
    assert accepted.tolist() == [2, 1, 0, 0]


def test_nobody_chooses() -> None:
    none, counts = ids(), ids(3, 1)
    table, made = torch.zeros(3, 9, dtype=torch.int64, device=DEVICE), ids(0, 1, 2)
    got = twin.accept(Drafts(none, none, none, none, 0), none, table, made, ids(0, 4), counts)
    assert torch.equal(got.certain, counts) and len(got.accepted) == len(got.proposed) == 0
    assert made.tolist() == [0, 1, 2]


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_drafts_are_written_alike(depth: int) -> None:
    """Two lanes are padding; what row 0 gets is nobody's."""
    draw = seeded(depth)
    rows = torch.cat((1 + torch.randperm(ROWS, generator=draw)[:LANES], torch.zeros(2).long())).to(DEVICE)
    position = torch.randint(POSITIONS - depth - 1, (len(rows),), generator=draw).to(DEVICE)
    drafts = torch.randint(9, (len(rows), depth), generator=draw).to(DEVICE)
    count = torch.randint(depth + 1, (len(rows),), generator=draw).to(DEVICE)
    (wanted, made), (found, told) = (
        (torch.full((ROWS + 1, POSITIONS), -1, device=DEVICE), torch.full((ROWS + 1,), -1, device=DEVICE))
        for _ in range(2)
    )
    reference.write_drafts(wanted, made, rows, position, drafts, count)
    twin.write_drafts(found, told, rows, position, drafts, count)
    assert torch.equal(found[1:], wanted[1:]) and torch.equal(told[1:], made[1:])
