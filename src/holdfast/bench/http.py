"""The least HTTP client that can read a stream of events: measuring must cost next to nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpError(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}: {body[:300].decode(errors='replace')}")
        self.status, self.body = status, body


class HttpClient:
    """Connections are kept and used again. Not for two event loops."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; write it like http://127.0.0.1:8000")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._key = f"authorization: Bearer {key}\r\n" if key else ""
        self._idle: list[Connection] = []

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        parts = [part async for part in self._parts(method, path, body)]
        return json.loads(b"".join(parts))

    async def events(self, path: str, body: Any) -> AsyncIterator[bytes]:
        """The data of each event. Leaving the iteration closes the connection."""
        held = b""
        async for part in self._parts("POST", path, body):
            held += part
            *whole, held = held.split(b"\n\n")
            for event in whole:
                if event.startswith(b"data:"):
                    yield event[5:].strip()

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _parts(self, method: str, path: str, body: Any) -> AsyncIterator[bytes]:
        connection = await self._connect()
        complete = False
        try:
            content = b"" if body is None else json.dumps(body).encode()
            connection[1].write(self._head(method, path, len(content)) + content)
            status, headers = await _read_head(connection[0])
            if status >= 400:
                parts = [part async for part in _read_body(connection[0], headers)]
                raise HttpError(status, b"".join(parts))
            async for part in _read_body(connection[0], headers):
                yield part
            complete = headers.get("connection", "") != "close"
        finally:
            if complete:
                self._idle.append(connection)
            else:
                connection[1].close()

    async def _connect(self) -> Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)

    def _head(self, method: str, path: str, length: int) -> bytes:
        return (
            f"{method} {self._root}{path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{self._key}"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode("latin-1")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value.strip().lower() for name, _, value in pairs}


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        yield await reader.readexactly(int(headers.get("content-length", "0")))
