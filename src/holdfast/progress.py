"""A bar on the terminal for what takes longer than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType


class Progress:
    """One line on stderr, redrawn at most ten times a second.

    show    True, False, or None: if stderr is a terminal, and only once the work has lasted a second
    detail  what to say after the bar, asked only when it is drawn
    """

    WIDTH = 30
    INTERVAL = 0.1
    PATIENCE = 1.0

    def __init__(
        self, label: str, total: int, detail: Callable[[], str], *, show: bool | None = None
    ) -> None:
        self.done = 0
        self._label, self._total, self._detail = label, total, detail
        self._enabled = _is_terminal() if show is None else show
        self._started = time.monotonic()
        self._next = self._started + (self.PATIENCE if show is None else 0.0)
        self._drawn_width = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        if self._enabled and (now := time.monotonic()) >= self._next:
            self._next = now + self.INTERVAL
            self._draw()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the line as it came to stand. Work that was over before a bar was due leaves none."""
        if self._enabled and (self._drawn_width or time.monotonic() >= self._next):
            self._draw()
            print(file=sys.stderr)

    def _draw(self) -> None:
        share = self.done / self._total if self._total else 1.0
        bar = ("#" * int(share * self.WIDTH)).ljust(self.WIDTH, ".")
        line = f"{self._label} [{bar}] {share:4.0%} {self._detail()}"
        print(f"\r{line:<{self._drawn_width}}", end="", file=sys.stderr, flush=True)
        self._drawn_width = len(line)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
