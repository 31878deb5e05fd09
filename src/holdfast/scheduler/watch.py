"""Requests as they are now, for whoever watches. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..cache import CacheManager
from ..request import Request
from .seat import Seat


@dataclass(frozen=True)
class LiveRequest:
    """Numbers only: what it says is nobody's business."""

    id: str
    row: int | None
    """None while it waits for one."""
    position: int
    """Tokens absorbed, as far as results are collected."""
    tokens: int
    """Of its prompt and of its answer, as far as it is known."""
    prompt_tokens: int
    cached_tokens: int
    cache_reason: str
    priority: int
    preemptions: int
    seconds: float
    """Since it arrived."""
    waits_for: str
    """Empty if it gets on."""


def live_requests(
    running: Iterable[Seat],
    waiting: Iterable[Request],
    awaited: Mapping[str, Seat],
    cache: CacheManager,
    now: float,
) -> Iterator[LiveRequest]:
    """Those that run, by row; then those that wait, in the order in which they will get one."""
    seats = sorted(running, key=lambda seat: seat.row)
    for seat in seats:
        position = cache.position(seat.row)
        yield _live(seat.request, now, row=int(seat.row), position=position, waits_for=_holds_up(seat, cache))
    for before, request in enumerate(waiting):
        if computing := awaited.get(request.id):
            waits_for = f"the prefix that row {computing.row} computes"
        elif before:
            waits_for = f"{before} before it"
        else:
            lacks = cache.lacks(request, cache.match(request), headroom=1 if seats else 0)
            waits_for = lacks or "the next step"
        yield _live(request, now, row=None, position=0, waits_for=waits_for)


def _holds_up(seat: Seat, cache: CacheManager) -> str:
    if seat.leaving:
        return "its last step, to make room for others"
    if cache.any_in_flight and not cache.in_flight(seat.row):
        return "a place in a step"
    return ""


def _live(request: Request, now: float, *, row: int | None, position: int, waits_for: str) -> LiveRequest:
    return LiveRequest(
        id=request.id,
        row=row,
        position=position,
        tokens=len(request.tokens),
        prompt_tokens=len(request.prompt),
        cached_tokens=request.metrics.cached_tokens,
        cache_reason=request.metrics.cache_reason,
        priority=request.priority,
        preemptions=request.metrics.preemptions,
        seconds=now - request.metrics.arrived,
        waits_for=waits_for,
    )
