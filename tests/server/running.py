"""A server in a process of its own, as a user starts it, and what can be asked of it from outside."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY = "sesame"
HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Running:
    def __init__(self, model: Path, *options: str, log: str) -> None:
        self.port, self.log = free_port(), log
        command = [sys.executable, "-m", "holdfast", "serve", str(model), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", "--log-file", log, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def wait_for(self, status: int, seconds: float = 120.0) -> dict[str, Any]:
        """Until /health has this status."""
        return until(lambda: self._has_health(status), seconds)

    def _has_health(self, status: int) -> dict[str, Any] | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended: {self.process.communicate()}")
        try:
            found, body = self.ask("GET", "/health")
        except OSError:
            return None
        return body if found == status else None

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = KEY) -> tuple[int, Any]:
        """Status and body; a body that is bytes is sent as it is."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            read = response.read()
        finally:
            connection.close()
        kind = response.headers["content-type"] or ""
        return response.status, json.loads(read) if kind.startswith("application/json") else read.decode()

    def open_stream(self, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
        """Sends the request and reads nothing of the answer."""
        content = json.dumps(body | {"stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(content)}"
        connection = socket.create_connection((HOST, self.port), timeout=60)
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        return connection

    def metrics(self) -> dict[str, float]:
        _, page = self.ask("GET", "/metrics")
        found = re.findall(r"^(?:holdfast:)?(\S+) (\S+)$", page, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def engine_pid(self) -> int:
        return int(
            next(event["engine_pid"] for event in reversed(self.events()) if event["event"] == "ready")
        )

    def events(self) -> list[dict[str, Any]]:
        lines = Path(self.log).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        return self.process.returncode


def until(found: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What it finds, as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < deadline, f"not within {seconds} seconds"
        time.sleep(0.05)
    return it


def pools_are_whole(metrics: dict[str, float]) -> bool:
    """Nobody runs, and whatever is not free is a prefix that could be given up."""
    return (
        metrics["num_requests_running"] == metrics["num_requests_waiting"] == 0
        and metrics["pages_free"] + metrics["pages_reusable"] == metrics["pages"]
        and metrics["slots_free"] + metrics["checkpoints"] == metrics["slots"]
    )
