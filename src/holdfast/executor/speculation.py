"""Verification and drafting over the rows' tables: drafts are written behind the last token that is certain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import Limits
from ..memory.kv_pool import KVPool
from ..memory.state_pool import Committed, StatePool
from ..ops.step import StateStep
from ..plan import RowStart
from ..spec.drafter import Draft, Drafter, VerifiedStep
from ..spec.verify import count_accepted
from .inputs import Lanes
from .sampler import Sampler
from .tables import RowTables


@dataclass(frozen=True)
class Verified:
    """accepted  [C]  drafts of each lane that chooses which are certain now
    proposed  [C]  those that a drafter had made
    certain   [B]  of all lanes: how many of their tokens are certain now
    """

    accepted: Tensor
    proposed: Tensor
    certain: Tensor


@dataclass(frozen=True)
class Drafted:
    step: VerifiedStep
    draft: Draft


class Speculation:
    """Without a drafter nothing is drafted, and what is chosen is written all the same."""

    def __init__(self, tables: RowTables, limits: Limits, drafter: Drafter | None) -> None:
        self.drafter = drafter
        self._tables = tables
        self._count = torch.zeros(limits.max_num_seqs + 1, dtype=torch.int64, device=tables.tokens.device)
        """How many drafts follow each row's last token."""

    def start(self, starts: tuple[RowStart, ...]) -> None:
        for start in starts:
            self._count[start.row] = 0

    def verify(self, step: StateStep, lanes: Lanes, chosen: Tensor) -> Verified:
        """Write each lane's bonus where the next step will read it; the drafts before it stand there already."""
        choices, table = lanes.choices, self._tables.tokens
        tell, drafts = choices.tell, choices.drafts
        known = (step.position + step.counts)[choices.lane] - drafts
        by_lane, proposed = choices.by_lane(chosen), drafts.minimum(self._count[tell])
        places = known[:, None] + torch.arange(choices.most_drafts, device=known.device)
        accepted = count_accepted(drafts=table[tell[:, None], places], chosen=by_lane, count=proposed)
        table[tell, known + accepted] = by_lane.gather(1, accepted[:, None])[:, 0]
        self._count[tell] = 0
        return Verified(accepted, proposed, step.counts.index_add(0, choices.lane, accepted - drafts))

    def propose(
        self, committed: Committed, lanes: Lanes, sampler: Sampler, state: StatePool, kv: KVPool
    ) -> Drafted | None:
        """For all lanes that chose a token."""
        choices, table = lanes.choices, self._tables.tokens
        if self.drafter is None or not choices.choosers:
            return None
        rows, position = choices.tell, committed.position[choices.lane]
        ends = (lanes.work[lane].position + lanes.work[lane].tokens for lane in choices.choosers)
        step = VerifiedStep(
            rows=rows,
            position=position,
            tokens=table,
            longest=table.shape[1] - 1 if lanes.uniform else max(ends),
            choose=sampler.guesser(rows, lanes),
            state=state,
            kv=kv,
        )
        draft = self.drafter.propose(step)
        places = position[:, None] + 1 + torch.arange(self.drafter.depth, device=rows.device)
        table[rows[:, None], places] = draft.tokens
        self._count[rows] = draft.count
        return Drafted(step, draft)
