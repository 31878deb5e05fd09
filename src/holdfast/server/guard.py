"""The HTTP connection, with a time and a size that a client's headers must keep to."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS = 64 << 10


def guarded_protocol(read_timeout: float) -> type[asyncio.Protocol]:
    class GuardedProtocol(HttpToolsProtocol):
        """From the first byte of a request, or from the connection itself, to the end of the headers."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._deadline: asyncio.TimerHandle | None = None
            self._unparsed = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._set_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            self._clear_deadline()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._deadline is not None:  # the headers have not ended yet
                self._unparsed += len(data)
                if self._unparsed > MAX_HEADERS and not self.transport.is_closing():
                    self.send_400_response("The headers are too long.")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["state"]["abort"] = self.transport.abort
            self._set_deadline()

        def on_headers_complete(self) -> None:
            self._clear_deadline()
            super().on_headers_complete()

        def _set_deadline(self) -> None:
            self._clear_deadline()
            self._deadline = self.loop.call_later(read_timeout, self.transport.abort)

        def _clear_deadline(self) -> None:
            self._unparsed = 0
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return GuardedProtocol
