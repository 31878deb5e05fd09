"""Attention over paged keys and values, in plain torch, for lanes of any length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..step import StateStep


def write_kv(keys: Tensor, values: Tensor, pool: tuple[Tensor, Tensor], pages: Tensor, step: StateStep) -> None:
    """Store the step's keys and values at their positions; a padded lane stores nothing.

    keys, values  [tokens, KH, D]
    pool          keys and values, each [pages, page_size, KH, D]
    pages         [rows, ordinals]: the page table
    """
    page_size = pool[0].shape[1]
    lane = torch.arange(len(step.rows), device=keys.device).repeat_interleave(
        torch.where(step.rows > 0, step.counts, 0)
    )
    token = torch.arange(len(lane), device=keys.device) - _starts(step)[lane]
    flat, position = step.offsets[lane] + token, step.position[lane] + token
    page = pages[step.rows[lane], position // page_size].long()
    for stored, fresh in zip(pool, (keys, values), strict=True):
        stored[page, position % page_size] = fresh[flat].to(stored.dtype)


def paged_attention(
    queries: Tensor, pool: tuple[Tensor, Tensor], pages: Tensor, step: StateStep, scale: float, *, exact: bool
) -> Tensor:
    """Every token attends to its lane up to and including itself; in a tree window, to its ancestors there.

    queries  [tokens, QH, D]; query head j reads key head j * KH // QH
    returns  [tokens, QH, D], NaN where no real lane has a token
    exact: token by token, so that shapes depend on the token's position alone.
    """
    out = torch.full_like(queries, torch.nan)
    for lane in range(len(step.rows)):
        count = int(step.counts[lane])
        if not int(step.rows[lane]) or not count:
            continue
        first, position = int(step.offsets[lane]), int(step.position[lane])
        keys, values = (_context(part, pages[step.rows[lane]], position + count) for part in pool)
        tree = lane < step.num_windows and step.tree is not None
        if exact and not tree:
            for t in range(count):
                seen = position + t + 1
                out[first + t] = _attend_one(queries[first + t], keys[:, :seen], values[:, :seen], scale)
        else:
            mask = _mask(step, lane, count, position)
            q = queries[first : first + count].transpose(0, 1)[None]
            result = F.scaled_dot_product_attention(
                q, keys[None].to(q.dtype), values[None].to(q.dtype), mask, scale=scale, enable_gqa=True
            )
            out[first : first + count] = result[0].transpose(0, 1)
    return out


def _starts(step: StateStep) -> Tensor:
    counts = torch.where(step.rows > 0, step.counts, 0)
    return counts.cumsum(0) - counts


def _context(stored: Tensor, pages: Tensor, length: int) -> Tensor:
    """[KH, length, D]: a row's positions 0 .. length - 1, gathered from its pages."""
    page_size = stored.shape[1]
    held = pages[: -(-length // page_size)].long()
    return stored[held].flatten(0, 1)[:length].transpose(0, 1)


def _mask(step: StateStep, lane: int, count: int, position: int) -> Tensor:
    """[count, position + count] bool: True where a token may look."""
    device = step.rows.device
    own = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    if step.tree is not None and lane < step.num_windows:
        own = step.tree.ancestors[lane, :count, :count]
    return torch.cat((torch.ones(count, position, dtype=torch.bool, device=device), own), 1)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """query [QH, D]; keys, values [KH, n, D]"""
    grouped = query.unflatten(0, (keys.shape[0], -1))
    scores = (grouped @ keys.contiguous().mT) * scale
    return (scores.softmax(-1) @ values.contiguous()).flatten(0, 1)
