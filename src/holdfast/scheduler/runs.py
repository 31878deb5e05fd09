"""Runs of accepted drafts: the text's own, whatever windows they came in."""

from __future__ import annotations

from ..ids import Row
from ..plan import RowWork


class Runs:
    """Of each row, tokens since one was not as drafted, if so many drafts were asked for in all that time."""

    def __init__(self) -> None:
        self._rows: dict[Row, tuple[int, int, int]] = {}

    def ended(self, work: RowWork, tokens: int, asked: int) -> int:
        """By a window that brought so many: how many there were. 0: it goes on."""
        generation, drafts, before = self._rows.get(work.row, (0, 0, 0))
        run = before + tokens if (generation, drafts) == (work.generation, asked) else tokens
        ends = tokens <= asked  # or the answer does
        self._rows[work.row] = work.generation, asked, 0 if ends else run
        return run if ends else 0
