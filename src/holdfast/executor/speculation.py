"""Verification and drafting over the rows' tables: drafts are written behind the last token that is certain."""

from __future__ import annotations

from dataclasses import dataclass

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

    def catch_up(self, rows: Tensor, counts: Tensor, longest: int, state: StatePool, kv: KVPool) -> None:
        """The drafter absorbs the last `counts` tokens of each row, none more than `longest`."""
        self._absorb(state.look_back(rows=rows, counts=counts, longest=longest), longest, state, kv)

    def catch_up_behind(
        self, rows: Tensor, missed: Tensor, longest: int, state: StatePool, kv: KVPool
    ) -> None:
        """The drafter absorbs the `missed` tokens of each row from where it stands, up to the line of its grant if
        that is before the last of them; they become fewer."""
        step = state.begin_behind(rows=rows, missed=missed, longest=longest)
        self._absorb(step, longest, state, kv)
        state.commit(step=step, accepted=step.counts, cursors=state.trailing)
        missed -= step.counts

    def _absorb(self, step: StateStep, longest: int, state: StatePool, kv: KVPool) -> None:
        assert self.drafter is not None
        places = step.places_of(len(step.rows) * longest)
        tokens, positions = self._tables.tokens[places], places[1]
        self.drafter.catch_up(Batch(tokens=tokens, positions=positions, step=step, state=state, kv=kv))

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
