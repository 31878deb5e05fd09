"""Attention over paged keys and values, in plain torch, for lanes of any length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..step import StateStep


def write_kv(
    keys: Tensor, values: Tensor, pool: tuple[Tensor, Tensor], pages: Tensor, step: StateStep
) -> None:
    """Store the step's keys and values at their positions; a padded lane stores nothing.

    keys, values  [tokens, KH, D]
    pool          keys and values, each [pages, page_size, KH, D]
    pages         [rows, ordinals]: the page table
    """
    flat, page, place = step.once("kv places", lambda: _places(pages, pool[0].shape[1], step))
    for stored, fresh in zip(pool, (keys, values), strict=True):
        stored[page, place] = fresh[flat].to(stored.dtype)


def paged_attention(
    queries: Tensor, pool: tuple[Tensor, Tensor], pages: Tensor, step: StateStep, scale: float, *, exact: bool
) -> Tensor:
    """Every token attends to its lane up to and including itself; in a tree window, to its ancestors there.

    queries  [tokens, QH, D]; query head j reads key head j * KH // QH
    returns  [tokens, QH, D], NaN where no real lane has a token
    exact: token by token, so that shapes depend on the token's position alone.
    """
    out = torch.full_like(queries, torch.nan)
    for lane, (row, count, first, position) in enumerate(step.host):
        if not row or not count:
            continue
        keys, values = (_context(part, pages[row], position + count) for part in pool)
        tree = step.tree if lane < step.num_windows else None
        if exact and tree is None:
            for t in range(count):
                seen = position + t + 1
                out[first + t] = _attend_one(queries[first + t], keys[:, :seen], values[:, :seen], scale)
        else:
            own = None if tree is None else tree.ancestors[lane, :count, :count]
            q = queries[first : first + count]
            out[first : first + count] = _attend(q, keys.to(q.dtype), values.to(q.dtype), own, scale)
    return out


def _places(pages: Tensor, page_size: int, step: StateStep) -> tuple[Tensor, Tensor, Tensor]:
    """Of every token of a real lane: where it lies in the flat batch, its page, its place there."""
    counts = torch.where(step.rows > 0, step.counts, 0)
    lane = torch.arange(len(step.rows), device=pages.device).repeat_interleave(counts)
    token = torch.arange(len(lane), device=pages.device) - (counts.cumsum(0) - counts)[lane]
    position = step.position[lane] + token
    page = pages[step.rows[lane], position // page_size].long()
    return step.offsets[lane] + token, page, position % page_size


def _context(stored: Tensor, pages: Tensor, length: int) -> Tensor:
    """[KH, length, D]: a row's positions 0 .. length - 1, gathered from its pages."""
    page_size = stored.shape[1]
    held = pages[: -(-length // page_size)]
    return stored.index_select(0, held).flatten(0, 1)[:length].transpose(0, 1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, own: Tensor | None, scale: float) -> Tensor:
    """queries [count, QH, D], last positions of keys and values [KH, length, D]; own: who of them sees whom.

    The query heads of one key head stand side by side as further queries of it.
    """
    count, length = len(queries), keys.shape[1]
    heads = queries.unflatten(1, (keys.shape[0], -1))
    grouped = heads.permute(1, 2, 0, 3).flatten(1, 2)  # [KH, G * count, D]
    mask = None
    if count > 1:
        if own is None:
            own = torch.ones(count, count, dtype=torch.bool, device=keys.device).tril()
        before = torch.ones(count, length - count, dtype=torch.bool, device=keys.device)
        mask = torch.cat((before, own), 1).repeat(grouped.shape[1] // count, 1)
    mixed = F.scaled_dot_product_attention(grouped[None], keys[None], values[None], mask, scale=scale)
    return mixed[0].unflatten(1, (-1, count)).permute(2, 0, 1, 3).flatten(1, 2)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """query [QH, D]; keys, values [KH, n, D]"""
    grouped = query.unflatten(0, (keys.shape[0], -1))
    scores = (grouped @ keys.contiguous().mT) * scale
    return (scores.softmax(-1) @ values.contiguous()).flatten(0, 1)
