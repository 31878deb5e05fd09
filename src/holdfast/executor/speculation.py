"""Verification and drafting over the rows' tables: drafts are written behind the last token that is certain."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layers.batch import Batch
from ..memory.kv_pool import KVPool
from ..memory.state_pool import StatePool
from ..ops.acceptance.reference import Verified
from ..ops.backend import Ops
from ..ops.step import StateStep
from ..spec.drafter import Draft, Drafter, VerifiedStep
from .inputs import Lanes
from .readback import Fetch
from .sampler import Needs, Sampler
from .tables import RowTables
from .trees import Trees


@dataclass(frozen=True)
class Drafted:
    step: VerifiedStep
    draft: Draft

    def fetch(self) -> Fetch:
        """Tokens, and parents if they branch. Copies: the next step may overwrite them."""
        draft = self.draft
        return Fetch(draft.tokens.clone(), *(() if draft.parents is None else (draft.parents.clone(),)))


class Speculation:
    """Without a drafter nothing is drafted, and what is chosen is written all the same."""

    def __init__(self, ops: Ops, tables: RowTables, drafter: Drafter | None) -> None:
        self.drafter, self._ops = drafter, ops
        self._tables = tables
        self.trees: Trees | None = None
        if drafter is not None and drafter.branches:
            self.trees = Trees(tables, drafter.depth)

    def verify(self, step: StateStep, lanes: Lanes, chosen: Tensor) -> Verified:
        """Write each lane's bonus where the next step will read it; the drafts before it stand there already."""
        return self._ops.accept(
            lanes.choices.drafts, chosen, self._tables.tokens, self._tables.drafts, step.position, step.counts
        )

    def catch_up(self, rows: Tensor, counts: Tensor, most: int, state: StatePool, kv: KVPool) -> None:
        """The drafter absorbs the last `counts` tokens of each row, `most` at most."""
        assert self.drafter is not None
        step = state.look_back(rows=rows, counts=counts, most=most)
        places = step.places_of(len(rows) * most)
        tokens, positions = self._tables.tokens[places], places[1]
        self.drafter.catch_up(Batch(tokens=tokens, positions=positions, step=step, state=state, kv=kv))

    def catch_up_behind(
        self, rows: Tensor, missed: Tensor, window: int, state: StatePool, kv: KVPool
    ) -> None:
        """The drafter absorbs as many of the `missed` tokens of each row as a window has, from where it stands; they
        become fewer. The last of them by itself: it then folds as the model did."""
        assert self.drafter is not None
        lanes = len(rows)
        counts = torch.where(missed > 1, (missed - 1).clamp(max=window), missed)
        step = state.begin(
            rows=rows,
            counts=counts,
            offsets=torch.arange(0, (lanes + 1) * window, window, device=rows.device),
            num_windows=lanes,
            longest_window=window,
            window_tokens=lanes * window,
            cursors=state.trailing,
        )
        lane = torch.arange(lanes, device=rows.device).repeat_interleave(window)
        offset = torch.arange(window, device=rows.device).repeat(lanes)
        row, positions, tokens = self._ops.absorbed(
            self._tables.tokens, rows, counts, step.position, lane, offset
        )
        step = replace(step, token_places=(row, positions))
        self.drafter.catch_up(Batch(tokens=tokens, positions=positions, step=step, state=state, kv=kv))
        state.commit(step=step, accepted=counts, cursors=state.trailing)
        missed -= counts

    def propose(
        self,
        depth: int,
        lanes: Lanes,
        sampler: Sampler,
        needs: Needs,
        state: StatePool,
        kv: KVPool,
    ) -> Drafted | None:
        """So many drafts for all lanes that chose a token, which are committed by now. Of uniform lanes it only
        matters how many there are, not what windows they had."""
        choices, table = lanes.choices, self._tables.tokens
        if self.drafter is None or not depth or not len(choices.drafts.lane):
            return None
        rows = choices.drafts.tell
        here = state.look_ahead(rows=rows, uniform=lanes.uniform)
        step = VerifiedStep(
            here=here,
            tokens=table,
            longest=table.shape[1] - 1 if lanes.uniform else max(map(lanes.end, choices.choosers)),
            depth=depth,
            choose=sampler.guesser(rows, here.position, needs),
            state=state,
            kv=kv,
        )
        draft = self.drafter.propose(step)
        if self.trees is not None:
            draft = self.trees.plant(rows, draft)
        written = (table, self._tables.drafts, rows, here.position)
        self._ops.write_drafts(*written, draft.tokens, draft.count)
        return Drafted(step, draft)
