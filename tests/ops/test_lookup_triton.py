"""The Triton kernel of prompt look-up against the reference, over texts longer than it reads at once."""

from __future__ import annotations

import pytest
import torch

from holdfast.ops.lookup import reference

from .steps import seeded

pytest.importorskip("triton")
from holdfast.ops.lookup import triton as twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POSITIONS = 80


@pytest.mark.parametrize("vocab", [2, 3, 5])
@pytest.mark.parametrize(("depth", "longest", "shortest"), [(1, 4, 2), (3, 2, 1), (7, 3, 3)])
def test_the_same_drafts(
    monkeypatch: pytest.MonkeyPatch, vocab: int, depth: int, longest: int, shortest: int
) -> None:
    """From nothing to full rows, in any order; of lanes that find nothing, any drafts will do."""
    monkeypatch.setattr(twin, "PLACES_AT_ONCE", 16)
    draw = seeded(vocab)
    table = torch.randint(vocab, (12, POSITIONS), generator=draw).to(DEVICE)
    rows = torch.randperm(12, generator=draw).to(DEVICE)
    position = torch.tensor([0, 1, 2, 3, 15, 16, 17, 31, 40, 64, 71, 71], device=DEVICE)
    sizes = {"depth": depth, "longest": longest, "shortest": shortest}
    drafts, count = reference.look_up(table, rows, position, within=POSITIONS - 1, **sizes)
    found, meant = twin.look_up(table, rows, position, within=POSITIONS - 1, **sizes)
    assert torch.equal(meant, count) and count.any()
    assert torch.equal(found[count > 0], drafts[count > 0])
    assert int(found.min()) >= 0 and int(found.max()) < vocab, "tokens, also where nothing was found"
