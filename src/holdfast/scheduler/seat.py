"""A request that runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..ids import Row
from ..plan import BONUS, RowWork, Window
from ..request import Request


@dataclass(eq=False)
class Seat:
    """A request and the row it has."""

    request: Request
    row: Row
    generation: int
    most_tokens: int
    """Prompt and answer together."""
    lines: tuple[int, ...] = ()
    """Where the tokens it was admitted with should still leave a checkpoint behind."""
    drafted: int = 0
    """So many drafts are made to follow the last token that it chose in this row, and are there to be verified."""
    leaving: bool = False
    """Pre-empted, and sitting out until none of its steps is in flight: then all its tokens are known."""
    quiet_until: int = 0
    """While fewer tokens are planned, a step takes the one that is known, chooses the next, and needs nothing: no
    page, no slot, no drafts."""
    settled_until: int = 0
    """It has pages for so many tokens, and none of them reaches a line."""

    def __post_init__(self) -> None:
        self.order = self.request.order
        self.stops = frozenset(self.request.stop_ids)
        self.next_token = RowWork(self.row, self.generation, 1, BONUS)
        """What it does in most steps."""
        self._windows: dict[int, RowWork] = {}

    def window(self, drafts: int) -> RowWork:
        """The one token that it knows, and so many drafts."""
        if drafts not in self._windows:
            self._windows[drafts] = RowWork(self.row, self.generation, 1 + drafts, Window(drafts))
        return self._windows[drafts]

    def leave(self) -> None:
        self.leaving, self.quiet_until, self.settled_until = True, 0, 0
