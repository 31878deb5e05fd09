"""Drafts that branch: which node follows which, and what moves when a path through them is accepted."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..memory.kv_pool import KVPool
from ..memory.state_pool import StatePool, moves_along
from ..ops.acceptance.reference import Drafts, Verified
from ..ops.acceptance.trees import Walk, accept_tree
from ..ops.step import StateStep, Tree
from ..ops.transfer import to_device
from ..spec.drafter import Draft
from .inputs import Lanes
from .logprobs import reordered
from .sampler import Chosen
from .tables import RowTables


class Trees:
    """Drafts stand in the table of tokens in the order of their nodes, until a path of them is accepted."""

    def __init__(self, tables: RowTables, nodes: int) -> None:
        self._tables = tables
        self._parents = tables.tokens.new_zeros(len(tables.tokens), nodes)
        """[rows + 1, nodes]: what each draft of a row follows; 0 is the row's last token."""

    def plant(self, rows: Tensor, draft: Draft) -> Draft:
        """For the next step. Penalties weigh a token by those before it, which the table has in order for texts only:
        rows that ask for them get no drafts."""
        assert draft.parents is not None
        self._parents[rows] = draft.parents
        return replace(draft, count=draft.count.masked_fill(self._tables.penalises(rows), 0))

    def of(self, lanes: Lanes) -> Tree | None:
        """A lane with drafts has its last token before them, and nothing else."""
        windows = lanes.work[: lanes.num_windows]
        if not any(work.window.drafts for work in windows):
            return None
        nodes = torch.arange(lanes.longest_window, device=lanes.rows.device)
        drafted = to_device([work.window.drafts > 0 for work in windows], nodes.device).bool()
        planted = self._parents[lanes.rows[: len(windows)], : len(nodes) - 1]
        chain = (nodes - 1).clamp(min=0).expand(len(windows), -1)
        branched = torch.cat((planted[:, :1] * 0, planted), 1)
        return Tree.of(torch.where(drafted[:, None], branched, chain))

    def verify(
        self, step: StateStep, lanes: Lanes, chosen: Chosen, state: StatePool, kv: KVPool
    ) -> tuple[Verified, Chosen]:
        tables, drafts = self._tables, lanes.choices.drafts
        given = (tables.tokens, tables.drafts, self._parents, step.position, step.counts)
        walk = accept_tree(drafts, chosen.tokens, *given)
        if step.tree is not None:
            self._move(step, drafts, walk, state, kv)
        order = _in_order(drafts, walk, len(chosen.tokens))
        scored = chosen.logprobs and reordered(chosen.logprobs, order)
        return walk.verified, replace(chosen, tokens=chosen.tokens[order], logprobs=scored)

    def _move(self, step: StateStep, drafts: Drafts, walk: Walk, state: StatePool, kv: KVPool) -> None:
        """What all layers keep of the accepted nodes, to the positions that these hold now."""
        path = torch.arange(step.longest_window, device=step.rows.device).repeat(step.num_windows, 1)
        place = torch.arange(drafts.most + 1, device=path.device)
        kept = (place <= walk.verified.accepted[:, None]) & (drafts.drafts > 0)[:, None]
        lane, at = kept.nonzero(as_tuple=True)
        path[drafts.lane[lane], at] = walk.path[lane, at]
        state.compact(step=step, path=path, accepted=walk.verified.certain)
        moves = moves_along(step, path, walk.verified.certain)
        kv.move(moves.rows, moves.source, moves.target)


def _in_order(drafts: Drafts, walk: Walk, choices: int) -> Tensor:
    """[S]: which choice each lane gets first, second and so on; after the last, whichever."""
    order = torch.arange(choices, device=walk.path.device)
    place = torch.arange(drafts.most + 1, device=order.device)
    lane, at = (place <= drafts.drafts[:, None]).nonzero(as_tuple=True)
    order[drafts.first[lane] + at] = drafts.first[lane] + walk.path[lane, at]
    return order
