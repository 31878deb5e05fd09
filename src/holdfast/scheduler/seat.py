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
    settled_until: int = 0
    """While a step ends within so many tokens, it takes the one that is known and the drafts that are made, chooses
    what follows, and needs nothing: no page, no slot."""
    drafting_until: int = 0
    """The same of a step that makes drafts for the next."""

    def __post_init__(self) -> None:
        self.order = self.request.order
        self.stops = frozenset(self.request.stop_ids)
        self._windows: dict[int, RowWork] = {}
        self.next = self.window(self.drafted)
        """The one token that it knows, and the drafts that are there: what it does in most steps."""

    def draft(self, drafts: int) -> None:
        """So many are made to follow the token that it chooses now."""
        if drafts != self.drafted:
            self.drafted, self.next = drafts, self.window(drafts)

    def window(self, drafts: int) -> RowWork:
        """The one token that it knows, and so many drafts."""
        work = self._windows.get(drafts)
        if work is None:
            window = Window(drafts) if drafts else BONUS
            work = self._windows[drafts] = RowWork(self.row, self.generation, 1 + drafts, window)
        return work

    def leave(self) -> None:
        self.leaving, self.settled_until, self.drafting_until = True, 0, 0
