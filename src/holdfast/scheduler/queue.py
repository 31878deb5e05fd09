"""Requests that wait for a row, in the order in which they will get one."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from ..request import Request


def _last_first(request: Request) -> tuple[int, int]:
    priority, arrival = request.order
    return (-priority, -arrival)


class WaitingQueue:
    """By priority, then arrival. A pre-empted request keeps both, so it comes back to the place it had."""

    def __init__(self) -> None:
        self._requests: list[Request] = []  # the first in line is at the end, where it is cheap to remove

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def peek(self, place: int = 0) -> Request | None:
        """The one with so many before it."""
        return self._requests[-1 - place] if place < len(self._requests) else None

    def push(self, request: Request) -> None:
        insort(self._requests, request, key=_last_first)

    def pop(self, place: int = 0) -> Request:
        return self._requests.pop(-1 - place)

    def discard(self, request_id: str) -> bool:
        """False if no such request waits."""
        for place, request in enumerate(self._requests):
            if request.id == request_id:
                del self._requests[place]
                return True
        return False
