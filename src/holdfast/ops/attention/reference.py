"""Attention over paged keys and values, in plain torch, for lanes of any length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..alike import alike
from ..places import Context, KVState, PagePlaces
from ..step import StateStep


def write_kv(keys: Tensor, values: Tensor, pool: KVState, pages: Tensor, step: StateStep) -> None:
    """Store the step's keys and values at their positions; a padded lane stores nothing.

    keys, values  [tokens, KH, width of each]
    pages         [rows, ordinals]: the page table
    """
    flat, places = step.once("kv places", lambda: kv_places(pages, pool.page_size, step))
    if len(flat) < len(keys):
        keys, values = keys.index_select(0, flat), values.index_select(0, flat)
    pool.store(places, keys, values)


def paged_attention(
    queries: Tensor,
    pool: KVState,
    pages: Tensor,
    step: StateStep,
    scale: float,
    *,
    value_dim: int | None = None,
    exact: bool,
) -> Tensor:
    """Every token attends to its lane up to and including itself; in a tree window, to its ancestors there.

    queries    [tokens, QH, D]; query head j reads key head j * KH // QH
    value_dim  if no values are stored: they are so many of the keys' channels, the first
    returns    [tokens, QH, value's width], NaN where no real lane has a token
    exact: token by token, so that shapes depend on the token's position alone.
    """
    held = step.once("contexts", lambda: contexts(pages, pool.page_size, step))
    grouped = queries.unflatten(1, (pool.keys.shape[2], -1))
    mixed: list[tuple[int, Tensor]] = []
    for lane, (row, count, first, position) in enumerate(step.host):
        if not row or not count:
            continue
        keys, values = pool.read(held[lane])
        if value_dim is not None:
            values = keys[..., :value_dim]
        asking = grouped[first : first + count]
        tree = step.tree if lane < step.num_windows else None
        if exact and tree is None:
            seen = range(position + 1, position + count + 1)
            alone = [_attend_one(asking[t], keys[:, :n], values[:, :n], scale) for t, n in enumerate(seen)]
            mixed.append((first, torch.stack(alone)))
            continue
        own = None if tree is None else tree.ancestors[lane, :count, :count]
        keys, values = keys.to(queries.dtype), values.to(queries.dtype)
        mixed.append((first, _attend(asking, keys, values, own, scale)))
    if sum(len(part) for _, part in mixed) == len(queries) > 0:
        return torch.cat([part for _, part in mixed]).flatten(1, 2)
    width = pool.values.shape[-1] if value_dim is None else value_dim
    out = queries.new_full((*queries.shape[:-1], width), torch.nan)
    for first, part in mixed:
        out[first : first + len(part)] = part.flatten(1, 2)
    return out


def kv_places(pages: Tensor, page_size: int, step: StateStep) -> tuple[Tensor, PagePlaces]:
    """Of every token of a real lane: where it lies in the flat batch, and its place in the pages."""
    counts = torch.where(step.rows > 0, step.counts, 0)
    lane = torch.arange(len(step.rows), device=pages.device).repeat_interleave(counts)
    token = torch.arange(len(lane), device=pages.device) - (counts.cumsum(0) - counts)[lane]
    rows, position = step.rows[lane], step.position[lane] + token
    page = pages[rows, position // page_size].long()
    return step.offsets[lane] + token, PagePlaces(rows, position, page, position % page_size)


def contexts(pages: Tensor, page_size: int, step: StateStep) -> list[Context]:
    """What each lane attends to."""
    lengths = ((row, position + count) for row, count, _, position in step.host)
    return [Context(row, length, pages[row, : -(-length // page_size)]) for row, length in lengths]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, own: Tensor | None, scale: float) -> Tensor:
    """queries [count, KH, G, D], last positions of keys and values [KH, length, D]; own: who of them sees whom.

    The query heads of one key head stand side by side as further queries of it.
    """
    count, length = len(queries), keys.shape[1]
    if count == 1:  # it sees all
        return F.scaled_dot_product_attention(queries, keys[None], values[None], scale=scale)
    grouped = queries.permute(1, 2, 0, 3).flatten(1, 2)  # [KH, G * count, D]
    if own is None:
        own = torch.ones(count, count, dtype=torch.bool, device=keys.device).tril()
    before = torch.ones(count, length - count, dtype=torch.bool, device=keys.device)
    mask = torch.cat((before, own), 1).repeat(grouped.shape[1] // count, 1)
    mixed = F.scaled_dot_product_attention(grouped[None], keys[None], values[None], mask, scale=scale)
    return mixed[0].unflatten(1, (-1, count)).permute(2, 0, 1, 3)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """query [KH, G, D]; keys, values [KH, n, D]"""
    scores = (alike(query) @ alike(keys).mT) * scale
    return scores.softmax(-1) @ alike(values)
