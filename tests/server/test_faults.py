"""What goes wrong outside of anyone's request: each has an outcome that its clients can read."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from .running import HOST, KEY, Running, until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="asks the kernel about processes, as Linux tells it"
)

SMALL = ("--max-num-seqs", "4", "--max-model-len", "4000", "--num-pages", "200", "--api-key", KEY)
ENDLESS = {"prompt": "a", "max_tokens": 3900, "ignore_eos": True}


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[Running]:
    """One to be broken."""
    running = Running(model, *SMALL, "--health-timeout", "2", log=str(tmp_path / "log.jsonl"))
    yield running
    running.stop()


def test_an_engine_that_is_killed_is_started_once_more(server: Running) -> None:
    assert server.wait_for(503)["status"] == "starting"
    status, told = server.ask("POST", "/v1/completions", {"prompt": "a"})
    assert status == 503 and told["error"]["message"] == "the engine is starting"
    server.wait_for(200)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)

    stream = client.completions.create(
        model="tiny", prompt="a", max_tokens=3900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    whole = server.open_stream({**ENDLESS, "stream_options": {"include_usage": True}})
    until(lambda: server.metrics()["num_requests_running"] == 2)
    os.kill(server.engine_pid(), signal.SIGKILL)
    red = server.wait_for(503)
    assert red["status"] == "restarting" and "signal 9" in red["reason"]
    with pytest.raises(openai.InternalServerError, match="started again"):
        client.completions.create(model="tiny", prompt="a", max_tokens=1)
    with pytest.raises(openai.APIError, match="signal 9"):
        for _ in stream:
            pass
    assert b"signal 9" in drained(whole, b"0\r\n\r\n")
    assert server.wait_for(200) == {"status": "ok", "deaths": 1}
    assert client.completions.create(model="tiny", prompt="a", max_tokens=3).usage.completion_tokens == 3
    assert server.metrics()["engine_deaths_total"] == 1

    os.kill(server.engine_pid(), signal.SIGSTOP)
    stuck = server.wait_for(503)
    assert stuck == {"status": "stuck", "reason": "the engine said nothing for 2 seconds"}
    os.kill(server.engine_pid(), signal.SIGCONT)
    server.wait_for(200)

    os.kill(server.engine_pid(), signal.SIGKILL)
    dead = until(lambda: (body := server.wait_for(503))["status"] == "dead" and body)
    assert "restart the server" in dead["reason"]
    events = [event["event"] for event in server.events()]
    assert events.count("the engine died, and is started once more") == 1
    assert events.count("the engine died again, and is not started a third time") == 1
    assert server.stop() == 0


def drained(connection: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end) and (part := connection.recv(1 << 16)):
        received += part
    connection.close()
    return received


def test_a_full_disk_costs_log_lines_and_nothing_else(model: Path) -> None:
    server = Running(model, *SMALL, log="/dev/full")
    try:
        server.wait_for(200)
        assert server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        assert server.metrics()["log_lines_dropped_total"] >= 2
        check_drain(server)
    finally:
        server.stop()


def check_drain(server: Running) -> None:
    """A server that is told to stop lets its requests end, takes no new ones, and takes its engine with it."""
    stream = server.open_stream({"prompt": "a", "max_tokens": 60, "ignore_eos": True})
    stream.recv(1)
    children = children_of(server.process.pid)
    server.process.send_signal(signal.SIGTERM)
    assert b"data: [DONE]" in drained(stream, b"0\r\n\r\n")
    assert server.process.wait(timeout=60) == 0
    with pytest.raises(OSError):
        socket.create_connection((HOST, server.port), timeout=5).close()
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_engine_does_not_outlive_its_server(server: Running) -> None:
    server.wait_for(200)
    stream = server.open_stream(ENDLESS)
    stream.recv(1)
    [engine] = children_of(server.process.pid)
    server.process.kill()
    until(lambda: not Path(f"/proc/{engine}").exists() or is_zombie(engine))
    stream.close()


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def holdfast(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
    )


def test_a_port_that_is_taken() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        began = time.monotonic()
        done = holdfast("serve", "--port", str(port))
    assert done.returncode == 1 and time.monotonic() - began < 30
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port" in done.stderr


def test_a_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    done = holdfast("serve", str(tmp_path), "--port", "0", "--log-format", "json")
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert any("has no config.json" in event.get("reason", "") for event in events), done.stderr


def test_a_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    done = holdfast("serve", "--port", "0", "--log-file", str(tmp_path / "absent" / "log"))
    assert done.returncode == 1 and "No such file or directory" in done.stderr
