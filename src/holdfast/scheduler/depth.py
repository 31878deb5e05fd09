"""How many drafts a step verifies. A decision, made of what earlier steps brought; a fixed number for now."""

from __future__ import annotations

from ..config import Limits
from ..plan import StepResult


class Depth:
    """Asked once for each row of a plan, and told of every result."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.max_drafts

    def drafts(self, *, room: int) -> int:
        """For a row that has room for so many more tokens, the bonus aside."""
        return max(0, min(self._most, room))

    def collected(self, result: StepResult) -> None:
        """Step times and accepted drafts: what an adaptive depth goes by."""


def draft_room(*, known: int, most_tokens: int, budget: int) -> int:
    """Drafts that could be of use: with the bonus they must not pass the last token that the request may have."""
    return min(most_tokens - known - 1, budget)
