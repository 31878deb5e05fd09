"""A small KV pool, and steps as attention sees them."""

from __future__ import annotations

import itertools

import torch

from holdfast.config import Limits
from holdfast.ids import Page, Row
from holdfast.memory.kv_pool import KVPool
from holdfast.memory.spec import KVSpec
from holdfast.ops.step import StateStep
from holdfast.plan import PageMap


def kv_pool(rows: int = 2, pages: int = 6, page_size: int = 4) -> KVPool:
    """Poisoned, page 0 included; row r's page n is page 1 + 3 (r - 1) + n."""
    limits = Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=1,
        max_model_len=3 * page_size - 1,
        vocab_size=1,
        page_size=page_size,
        num_pages=pages,
        num_slots=0,
        fold_every=4,
        max_window=1,
    )
    pool = KVPool({"attention": KVSpec(1, 2, torch.float32)}, limits, torch.device("cpu"))
    for part in pool.layers["attention"]:
        part.fill_(torch.nan)
    pages = (PageMap(Row(r), n, Page(3 * r - 2 + n)) for r in range(1, rows + 1) for n in range(3))
    pool.map(tuple(pages), turn=0)
    return pool


def attention_step(rows: list[int], counts: list[int], position: list[int], windows: int) -> StateStep:
    nothing = torch.zeros(len(rows), dtype=torch.int64)
    return StateStep(
        rows=torch.tensor(rows, dtype=torch.int64),
        counts=torch.tensor(counts, dtype=torch.int64),
        offsets=torch.tensor([0, *itertools.accumulate(counts)]),
        position=torch.tensor(position, dtype=torch.int64),
        base=nothing,
        read_slot=nothing,
        end_base=nothing,
        write_slot=nothing,
        num_windows=windows,
        longest_window=max(counts[:windows], default=0),
        grid=4,
    )
