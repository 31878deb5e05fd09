"""Text that grows token by token, and never shows half a character."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
"""What decoders put where bytes are no character, or not yet."""

MAX_HELD = 8
"""More replacement characters than this in a row are no character to come: the bytes are simply wrong."""


class Detokenizer:
    """Decodes a short window of tokens again and again, and hands out what further tokens cannot change.

    A window begins with tokens already handed out: decoders treat the beginning of a text differently (many
    strip its first space), so a token is never decoded as if it were the first one.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], is_silent: Callable[[int], bool] = lambda _: False
    ) -> None:
        self._decode = decode
        self._is_silent = is_silent  # tokens that never give text; a window would only grow by them
        self._window: list[int] = []
        self._context = 0  # how many of the window's tokens were handed out in full
        self._shown = 0  # how many characters of the window's text were handed out
        self.text = ""

    def push(self, token_id: int) -> str:
        """Take one token and return the text that became certain, perhaps none."""
        if self._is_silent(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        waiting = len(text) - len(text.rstrip(REPLACEMENT))
        held = waiting if waiting <= MAX_HELD else 1
        new = self._show(text, len(text) - held)
        if waiting > MAX_HELD:
            self._forget(len(self._window) - MAX_HELD, held)
        elif new and not held:
            self._forget(self._context, held)
        return new

    def finish(self) -> str:
        """The text that was held back for a token that will not come."""
        text = self._decode(self._window)
        return self._show(text, len(text))

    def _show(self, text: str, end: int) -> str:
        new = text[self._shown : end]
        self._shown = max(self._shown, end)
        self.text += new
        return new

    def _forget(self, count: int, held: int) -> None:
        """Drop the window's first tokens; those left are the context of the next."""
        del self._window[:count]
        self._context = len(self._window)
        self._shown = len(self._decode(self._window)) - held
