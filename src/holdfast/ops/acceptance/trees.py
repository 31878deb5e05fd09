"""Acceptance in trees of drafts: from the last certain token down, whichever child is what was chosen there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .reference import Drafts, Verified


@dataclass(frozen=True)
class Walk:
    """path  [C, most + 1]: the nodes of each lane from the last certain token, 0, down to the last that is accepted;
    that one is repeated"""

    verified: Verified
    path: Tensor


def accept_tree(
    drafts: Drafts,
    chosen: Tensor,
    table: Tensor,
    made: Tensor,
    parents: Tensor,
    position: Tensor,
    counts: Tensor,
) -> Walk:
    """As `reference.accept`; and accepted tokens move to where they stand now, before the bonus.

    parents  [rows, most or more]: the node that each draft follows
    """
    tell, each = drafts.tell, drafts.drafts
    known = (position + counts)[drafts.lane] - each
    by_node, proposed = drafts.by_lane(chosen), each.minimum(made[tell])
    node = torch.arange(1, drafts.most + 1, device=table.device)
    guesses = table[tell[:, None], known[:, None] + node - 1]
    above, meant = parents[tell, : drafts.most], node <= proposed[:, None]
    at = accepted = torch.zeros_like(tell)
    path = [at]
    for _ in range(drafts.most):
        follows = meant & (above == at[:, None]) & (guesses == by_node.gather(1, at[:, None]))
        found = follows.any(1)
        at = torch.where(found, follows.long().argmax(1) + 1, at)
        accepted = accepted + found
        path.append(at)
    walked = torch.stack(path, 1)
    place = torch.arange(drafts.most + 1, device=table.device)
    cells = (tell[:, None], known[:, None] + place)
    table[cells] = torch.where(place <= accepted[:, None], by_node.gather(1, walked), table[cells])
    made[tell] = 0
    certain = counts.index_add(0, drafts.lane, accepted - each)
    return Walk(Verified(accepted, proposed, certain), walked)
