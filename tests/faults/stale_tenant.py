"""What the last tenant left in a row, a slot or a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.cache import manager
from holdfast.memory.kv_pool import KVPool
from holdfast.memory.state_pool import StatePool
from holdfast.ops.attention import reference as attention
from holdfast.ops.places import Context, KVState

from .fault import ALONE, Ask, Fault, Scene, wrap


def _cursors_stay(patch: pytest.MonkeyPatch) -> None:
    def keep_length(start: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, starts: Any) -> None:
            before = pool.cursors.length.clone()
            start(pool, starts)
            pool.cursors.length.copy_(before)

        return other

    wrap(patch, StatePool, "start", keep_length)


def _first_page_stays(patch: pytest.MonkeyPatch) -> None:
    def keep_first(start: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: KVPool, starts: Any) -> None:
            first = pool.table[:, 0].clone()
            start(pool, starts)
            pool.table[:, 0] = first

        return other

    def only_new(map_: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: KVPool, pages: Any, turn: int) -> None:
            map_(pool, tuple(p for p in pages if p.ordinal or not pool.table[p.row, 0]), turn)

        return other

    wrap(patch, KVPool, "start", keep_first)
    wrap(patch, KVPool, "map", only_new)


def _slot_given_twice(patch: pytest.MonkeyPatch) -> None:
    def shared(start: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, starts: Any) -> None:
            start(pool, starts)
            pool.cursors.own_slot[2] = pool.cursors.own_slot[1]

        return other

    wrap(patch, StatePool, "start", shared)


def _last_page_forgotten(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, manager, "pages_for", lambda pages_for: lambda length, size: pages_for(length - 1, size))


def _context_a_page_short(patch: pytest.MonkeyPatch) -> None:
    def short(contexts: Callable[..., Any]) -> Callable[..., Any]:
        def other(pages: Any, page_size: int, step: Any) -> list[Context]:
            found = zip(contexts(pages, page_size, step), step.host, strict=True)
            return [
                Context(
                    c.row, c.length, c.pages[:-1] if count == 1 and 0 < c.length % page_size < 5 else c.pages
                )
                for c, (_, count, _, _) in found
            ]

        return other

    wrap(patch, attention, "contexts", short)


def _recycled_nan(patch: pytest.MonkeyPatch) -> None:
    """Pages come back with NaN in them, and attention multiplies what it should not look at by zero."""

    def whole_pages(read: Callable[..., Any]) -> Callable[..., Any]:
        def other(kv: KVState, at: Context) -> Any:
            keys, values = read(kv, Context(at.row, len(at.pages) * kv.page_size, at.pages))
            beyond = 0 * values[:, at.length :].sum(1, keepdim=True)
            return keys[:, : at.length], values[:, : at.length] + beyond

        return other

    def with_nan(init: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: KVPool, *args: Any) -> None:
            init(pool, *args)
            for part in (part for layer in pool.layers.values() for part in layer):
                part[5:8] = torch.nan

        return other

    wrap(patch, KVState, "read", whole_pages)
    wrap(patch, KVPool, "__init__", with_nan)


def _one_past_a_page(*lengths: int, **options: int) -> Scene:
    return Scene(asks=tuple(Ask(length, 24) for length in lengths), options={**ALONE.options, **options})


FIRST_PAGE_PASSED_ON = Scene(
    asks=(Ask(17, 8), Ask(49, 40), Ask(49, 40), Ask(5, 30), Ask(20, 20, after=25)),
    options=dict(enable_prefix_caching=False, num_pages=16),
)
"""The second outgrows its share of pages, and takes over the first one's. Then the last one comes to that row."""

FAULTS = (
    Fault(
        "cursors-of-the-last-tenant",
        "vLLM #56524",
        "a row's new request begins with the journal of the one before",
        "stamps",
        _cursors_stay,
    ),
    Fault(
        "page-of-the-last-tenant",
        "vLLM #56524",
        "a row's page table keeps an entry of the request before",
        "stamps",
        _first_page_stays,
        FIRST_PAGE_PASSED_ON,
    ),
    Fault(
        "slot-given-twice",
        "a class of many",
        "two requests fold into one slot",
        "stamps",
        _slot_given_twice,
        Scene(asks=(Ask(70, 24), Ask(17, 40), Ask(33, 30)), options=ALONE.options),
    ),
    Fault(
        "one-past-a-page",
        "a class of many",
        "no page is taken for the one token that begins it",
        "stamps",
        _last_page_forgotten,
        _one_past_a_page(33, 17, 49, num_pages=13),  # so few that none are given ahead
    ),
    Fault(
        "context-a-page-short",
        "a class of many",
        "attention leaves out a page that has hardly begun",
        "stamps",
        _context_a_page_short,
        _one_past_a_page(33, 17, 49, num_pages=13),  # so few that what follows a row's pages is another's
    ),
    Fault(
        "recycled-nan",
        "a class of many",
        "a recycled page holds NaN, and attention multiplies what it masks by zero",
        "stamps",
        _recycled_nan,
    ),
)
