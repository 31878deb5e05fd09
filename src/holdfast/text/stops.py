"""Text that grows token by token and ends at a stop string, wherever token boundaries fall."""

from __future__ import annotations

from collections.abc import Sequence

from .detokenizer import Detokenizer


class StopStrings:
    """Of all that appear, the one that ends first; of two that end together, the longer one. So it does not
    matter in what pieces a text arrives."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)

    def find(self, text: str, searched: int) -> tuple[int, str] | None:
        """Where a stop string begins, and which, if one ends after the first `searched` characters."""
        found = []
        for stop in self._stops:
            begin = text.find(stop, max(0, searched - len(stop) + 1))
            if begin >= 0:
                found.append((begin + len(stop), begin, stop))
        return min(found)[1:] if found else None

    def unfinished(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = len(self._stops[0]) - 1 if self._stops else 0
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class StoppingText:
    """The text of an answer as its tokens arrive. Nothing that is shown is ever taken back."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._searched = 0
        self._end: int | None = None  # where the text is cut, or is complete
        self.tokens = 0
        self.stop: str | None = None
        """The stop string that ended the text."""

    def push(self, token_id: int) -> bool:
        """Take one token. True if it completed a stop string: then the text is final, and takes no more."""
        self._detokenizer.push(token_id)
        self.tokens += 1
        if self.tokens <= self._min_tokens:
            self._searched = len(self._detokenizer.text)
            return False
        return self._search()

    def finish(self) -> None:
        """No token will come: what was held back for one is shown."""
        if self._end is None:
            self._detokenizer.finish()
            self._search()
            self._end = len(self._detokenizer.text) if self._end is None else self._end

    @property
    def text(self) -> str:
        whole = self._detokenizer.text
        if self._end is not None:
            return whole[: self._end]
        held = 0 if self._include_stop else self._stops.unfinished(whole)
        return whole[: len(whole) - held]

    def _search(self) -> bool:
        whole = self._detokenizer.text
        found = self._stops.find(whole, self._searched)
        self._searched = len(whole)
        if found is None:
            return False
        begin, self.stop = found
        self._end = begin + len(self.stop) if self._include_stop else begin
        return True
