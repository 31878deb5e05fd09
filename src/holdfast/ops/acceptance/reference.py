"""Which drafts are accepted: those that are what was chosen in their place.

Every position of a window is sampled as if nothing had been guessed, with noise that depends on the row's seed and
the position alone. So a request gets the tokens that it would have got anyway, and no drafter can change them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Drafts:
    """C lanes that choose: after the last token that is known, and after each of their drafts.

    lane    [C]  which of the step's lanes
    drafts  [C]  that the lane verifies, `most` at most
    first   [C]  which of the step's choices is the lane's first
    tell    [C]  the row that gets the lane's tokens; 0: they are dropped
    """

    lane: Tensor
    drafts: Tensor
    first: Tensor
    tell: Tensor
    most: int

    def by_lane(self, chosen: Tensor) -> Tensor:
        """[S] -> [C, most + 1]; a lane with fewer drafts repeats its last."""
        if not self.most:
            return chosen[self.first][:, None]
        place = torch.arange(self.most + 1, device=chosen.device)
        return chosen[self.first[:, None] + place.minimum(self.drafts[:, None])]


@dataclass(frozen=True)
class Verified:
    """accepted  [C]  drafts of each lane that chooses which are certain now
    proposed  [C]  those that a drafter had made
    certain   [B]  of all lanes: how many of their tokens are certain now
    """

    accepted: Tensor
    proposed: Tensor
    certain: Tensor


def accept(
    drafts: Drafts, chosen: Tensor, table: Tensor, made: Tensor, position: Tensor, counts: Tensor
) -> Verified:
    """Compare drafts with choices, and write each lane's bonus behind those that are accepted.

    chosen            [S]
    table             [rows, positions]: the drafts stand there, behind the last token that is certain
    made              [rows]: how many there are; 0 afterwards
    position, counts  [B], of all lanes
    """
    tell, each = drafts.tell, drafts.drafts
    known = (position + counts)[drafts.lane] - each
    if not drafts.most:
        table[tell, known], made[tell] = chosen[drafts.first], 0
        return Verified(torch.zeros_like(each), torch.zeros_like(each), counts)
    by_lane, proposed = drafts.by_lane(chosen), each.minimum(made[tell])
    places = known[:, None] + torch.arange(drafts.most, device=known.device)
    accepted = count_accepted(drafts=table[tell[:, None], places], chosen=by_lane, count=proposed)
    table[tell, known + accepted] = by_lane.gather(1, accepted[:, None])[:, 0]
    made[tell] = 0
    return Verified(accepted, proposed, counts.index_add(0, drafts.lane, accepted - each))


def write_drafts(
    table: Tensor, made: Tensor, rows: Tensor, position: Tensor, drafts: Tensor, count: Tensor
) -> None:
    """Behind the last token of each row, for the next step to verify.

    table           [rows, positions]
    made            [rows]: how many there are
    rows, position  [N]: whose they are, and where the last token stands
    drafts, count   [N, D] and [N]: so many of them were meant
    """
    places = position[:, None] + 1 + torch.arange(drafts.shape[1], device=rows.device)
    table[rows[:, None], places] = drafts
    made[rows] = count


def count_accepted(*, drafts: Tensor, chosen: Tensor, count: Tensor) -> Tensor:
    """[N]: how many of each lane's drafts are certain now; the bonus is what was chosen after so many.

    drafts  [N, D]
    chosen  [N, D + 1]: in the place of each draft, and after the last
    count   [N]: so many of the drafts were meant and planned; no other is accepted
    """
    place = torch.arange(drafts.shape[1], device=drafts.device)
    agree = (drafts == chosen[:, :-1]) & (place < count[:, None])
    return agree.long().cumprod(1).sum(1)
