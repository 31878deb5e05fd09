"""One HTTP request and the response to it."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from .errors import ApiError
from .options import ServerOptions

CLIENTS_OWN_ID = re.compile(r"[A-Za-z0-9._:-]{1,80}")
GONE = 499
"""The client closed the connection. No client ever sees this status, only logs and metrics do."""


class Disconnected(Exception):
    """The client went away, or has stopped to read."""


class Call:
    def __init__(self, scope: Scope, receive: Receive, send: Send, options: ServerOptions) -> None:
        self._receive, self._send, self._options = receive, send, options
        self._abort = scope.get("state", {}).get("abort", lambda: None)
        self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        own = self.header("x-request-id")
        self.id = own if CLIENTS_OWN_ID.fullmatch(own) else uuid.uuid4().hex
        self.path: str = scope["path"]
        self.status = 0
        """0 until a response has begun."""
        self.fields: dict[str, Any] = {}
        """What the log line of this request says beside the usual."""
        self.began = time.monotonic()
        self._streaming = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    async def body(self) -> bytes:
        """Raises ApiError if it is too large, or too slow to come."""
        most = self._options.body_bytes
        announced = self.header("content-length")
        if announced.isdigit() and int(announced) > most:
            raise _too_large(most)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._options.read_timeout):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            slow = f"the request was not sent within {self._options.read_timeout:g} seconds"
            raise ApiError(408, slow, headers={"connection": "close"}) from None

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this while the client waits for it. Raises Disconnected, or ApiError 504 if it takes too long."""
        main, gone = asyncio.create_task(work), asyncio.create_task(self._until_gone())
        try:
            await asyncio.wait(
                {main, gone}, timeout=self._options.request_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if main.done():
                return main.result()
            if gone.done():
                raise Disconnected
            raise ApiError(
                504, f"it took longer than {self._options.request_timeout:g} seconds; ask for less"
            )
        finally:
            main.cancel()
            gone.cancel()
            await asyncio.gather(main, gone, return_exceptions=True)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        await self.reply_bytes(msgspec.json.encode(value), "application/json", status, headers)

    async def reply_bytes(
        self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        await self._begin(status, kind, {"content-length": str(len(body)), **(headers or {})})
        await self._write(body, more=False)

    async def fail(self, error: ApiError) -> None:
        """If a stream has begun, its last event is the error: the status is long sent."""
        if self._streaming:
            await self.events([error.body()])
            await self._write(b"", more=False)
            self.status = error.status
        elif not self.status:
            await self.reply(error.body(), error.status, error.headers)

    async def begin_stream(self) -> None:
        self._streaming = True
        await self._begin(200, "text/event-stream; charset=utf-8", {"cache-control": "no-cache"})

    async def events(self, values: list[Any]) -> None:
        await self._write(
            b"".join(b"data: %b\n\n" % msgspec.json.encode(value) for value in values), more=True
        )

    async def end_stream(self) -> None:
        await self._write(b"data: [DONE]\n\n", more=False)

    async def _begin(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.status = status
        told = {"content-type": kind, "x-request-id": self.id, **headers}
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def _write(self, body: bytes, *, more: bool) -> None:
        """A client that does not read is let go of: its answer would only grow here."""
        try:
            async with asyncio.timeout(self._options.write_timeout):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            self._abort()
            raise Disconnected from None


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most:,} bytes", headers={"connection": "close"})
