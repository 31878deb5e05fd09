"""A request that runs."""

from __future__ import annotations

from dataclasses import dataclass

from ..ids import Row
from ..request import Request


@dataclass
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

    def __post_init__(self) -> None:
        self.order = self.request.order
