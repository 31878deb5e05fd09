"""Attention's lanes, with contexts in scattered pages, and a softmax in float64 that sees one token and its keys."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.ops.attention.heads import Heads
from holdfast.ops.backend import choose
from holdfast.ops.places import KVState
from holdfast.ops.step import Tree

from .steps import Lane, make_step, seeded

SCALE = 0.3


def plain(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """query [QH, D]; keys, values [n, KH, D] that it sees, all of them"""
    group = query.shape[0] // keys.shape[1]
    heads = []
    for head in range(query.shape[0]):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        heads.append(torch.softmax(k @ query[head].double() * SCALE, 0) @ v)
    return torch.stack(heads)


class Paged:
    """Rows whose contexts lie in pages scattered over a pool; every byte that was not written is NaN."""

    def __init__(
        self, lanes: list[Lane], *, page: int, heads: tuple[int, int] = (4, 2), dim: int = 8, seed: int = 0
    ) -> None:
        self.lanes, self.page = lanes, page
        query_heads, key_heads = heads
        longest = max((lane.position + lane.count for lane in lanes), default=1)
        ordinals, rows = -(-longest // page), max((lane.row for lane in lanes), default=0)
        shuffled = torch.randperm(rows * ordinals, generator=seeded(seed)) + 1
        self.table = torch.cat((torch.zeros(1, ordinals), shuffled.reshape(rows, ordinals))).int()
        empty = torch.full((rows * ordinals + 1, page, key_heads, dim), torch.nan)
        self.pool = KVState(empty, empty.clone())
        generator = seeded(seed + 1)
        tokens = sum(lane.count for lane in lanes)
        self.queries = torch.randn(tokens, query_heads, dim, generator=generator)
        self.context = [
            [torch.randn(lane.position + lane.count, key_heads, dim, generator=generator) for _ in range(2)]
            for lane in lanes
        ]
        for lane, context in zip(lanes, self.context, strict=True):
            for stored, known in zip(self.pool, context, strict=True):
                for position in range(lane.position if lane.row else 0):
                    stored[self.table[lane.row, position // page], position % page] = known[position]

    def run(self, *, exact: bool, tree: Tree | None = None) -> Tensor:
        fresh = [
            [known[lane.position :] for known in c] for lane, c in zip(self.lanes, self.context, strict=True)
        ]
        empty = self.pool.keys.new_zeros(0, *self.pool.keys.shape[2:])
        keys, values = (torch.cat([empty, *(part[i] for part in fresh)]) for i in range(2))
        step = make_step(self.lanes, tree=tree)
        return choose("reference", exact=exact).attention(
            self.queries, keys, values, Heads(SCALE), self.pool, self.table, step
        )

    def check(self, out: Tensor, tree: Tree | None = None) -> None:
        first = 0
        for index, (lane, (keys, values)) in enumerate(zip(self.lanes, self.context, strict=True)):
            for t in range(lane.count):
                if not lane.row:
                    assert out[first + t].isnan().all()
                    continue
                seen = torch.arange(lane.position + t + 1)
                if tree is not None and not lane.is_run:
                    above = tree.ancestors[index, t].nonzero().flatten()
                    seen = torch.cat((torch.arange(lane.position), lane.position + above))
                wanted = plain(self.queries[first + t], keys[seen], values[seen])
                torch.testing.assert_close(out[first + t].double(), wanted, rtol=0, atol=2e-6)
            first += lane.count
        assert all(part[0].isnan().all() for part in self.pool)


MIXED = [
    Lane(1, 1),
    Lane(2, 1, 40),
    Lane(0, 3),
    Lane(3, 4, 13),
    Lane(4, 0, 9),
    Lane(5, 33),
    Lane(0, 6),
    Lane(6, 20, 27),
]
