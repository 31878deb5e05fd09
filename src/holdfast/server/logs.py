"""Log lines: one event each, with its fields, as text or as JSON. A full disk costs lines, never requests."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

logger = logging.getLogger("holdfast")

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


def configure(form: str = "text", level: str = "info", file: str | None = None) -> None:
    """Of this process, once. Without a file, lines go to standard error."""
    descriptor = sys.__stderr__.fileno() if file is None else _open(file)  # type: ignore[union-attr]
    handler = LogHandler(descriptor)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for name in ("holdfast", "uvicorn.error"):
        named = logging.getLogger(name)
        named.handlers, named.propagate = [handler], False
        named.setLevel(level.upper() if name == "holdfast" else "WARNING")


def event(what: str, *, level: int = logging.INFO, **fields: Any) -> None:
    logger.log(level, what, extra={"fields": fields})


class LogHandler(logging.Handler):
    dropped = 0
    """Lines that could not be written, by all handlers of this process."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                self._write(f"{self._lost} log lines were lost: they could not be written\n")
                self._lost = 0
            self._write(self.format(record) + "\n")
        except OSError:
            self._lost += 1
            LogHandler.dropped += 1

    def _write(self, line: str) -> None:
        os.write(self._descriptor, line.encode(errors="backslashreplace"))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{_when(record)} {record.levelname:<7} {record.getMessage()}{'  ' if fields else ''}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {"time": _when(record), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told | _fields(record), default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _shown(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return json.dumps(text) if not text or any(c <= " " or c in '"=\x7f' for c in text) else text


def _when(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z"


def _open(file: str) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
