"""Parts of the server by themselves, where a fault is easier to plant."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.answer import Answer
from holdfast.cache import CacheManager
from holdfast.config import EngineConfig, Limits
from holdfast.request import FinishReason, Request, SamplingParams, SpeculationStats
from holdfast.scheduler.scheduler import Counters
from holdfast.server import logs
from holdfast.server.call import Call, Disconnected
from holdfast.server.client import EngineClient, Job, RequestFailed
from holdfast.server.engine_process import Closed, Wire
from holdfast.server.errors import ApiError
from holdfast.server.messages import (
    Asked,
    Cancel,
    EngineStats,
    Growth,
    Start,
    Stepped,
    Submit,
    frame,
)
from holdfast.server.metrics import Metrics
from holdfast.server.options import ServerOptions

LIMITS = Limits(
    max_num_seqs=2,
    max_num_batched_tokens=64,
    max_model_len=64,
    vocab_size=10,
    page_size=16,
    num_pages=8,
    num_slots=2,
    fold_every=16,
    max_window=1,
)


def test_the_server_has_no_torch() -> None:
    source = "import sys; sys.modules['torch'] = None; import holdfast.server.run"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("host", "private"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_what_only_this_machine_can_reach(host: str, private: bool) -> None:
    assert ServerOptions(host=host).is_private is private
    assert ServerOptions().is_private


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_queue=-1 must be at least 0"):
        ServerOptions(max_queue=-1)
    assert ServerOptions(api_key="a,,b").keys == ("a", "b")


# --- what comes up from the engine ---


def client_of(*requests: Request) -> tuple[EngineClient, Job, Metrics]:
    """With a job that the engine has; what goes down to it is kept in `sent`."""
    metrics = Metrics()
    client = EngineClient(Start("", EngineConfig(), {}), None, metrics)  # type: ignore[arg-type]
    job = Job([[Answer(request, None) for request in requests]], arrived=0.0)
    client._live = {answer.request.id: (answer, job) for answer in job}
    return client, job, metrics


def test_an_answer_that_cannot_be_trusted_is_an_error_and_the_others_go_on() -> None:
    async def work() -> None:
        good, bad = (Request(name, (1, 2), SamplingParams(max_tokens=2)) for name in ("good", "bad"))
        client, job, _ = client_of(good)
        _, broken, _ = client_of(bad)
        client._live["bad"] = (broken.answers[0][0], broken)
        client._handle(Stepped([Growth("bad", [], FinishReason.ERROR, error="step 7: read of temporal")]))
        client._handle(Stepped([Growth("good", [5]), Growth("gone", [1])]))
        client._handle(Stepped([Growth("good", [6], FinishReason.LENGTH)]))
        with pytest.raises(RequestFailed, match="step 7"):
            await broken.done()
        await job.done()
        assert job.finished and good.output == [5, 6] and client.num_live == 0

    asyncio.run(work())


def test_speculation_is_charted() -> None:
    metrics, drafts = Metrics(), SpeculationStats(depth=3, steps={3: {"best": 7}, 0: {"explore": 2}})
    drafts.count(drafts=3, accepted=2)
    drafts.count(drafts=3, accepted=0)
    cache = CacheManager(LIMITS).stats()
    metrics.stats = EngineStats(1, 2, Counters(), cache, findings=4, speculation=drafts)
    page = metrics.page().decode()
    for line in (
        "num_drafts_total 2.0",
        "num_draft_tokens_total 6.0",
        "num_accepted_tokens_total 2.0",
        'num_accepted_tokens_per_pos_total{position="1"} 1.0',
        "depth 3.0",
        'steps_total{depth="3",reason="best"} 7.0',
        'steps_total{depth="0",reason="explore"} 2.0',
    ):
        assert f"\nholdfast:spec_decode_{line}\n" in page
    assert "\nholdfast:sanitizer_findings_total 4.0\n" in page
    assert "\nholdfast:num_requests_waiting 2.0\n" in page


# --- log lines ---


def record(message: str, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("holdfast", logging.INFO, "", 0, message, (), None)
    made.fields = fields
    return made


def test_a_line_is_one_event_whatever_is_in_it() -> None:
    text = logs.TextFormatter().format(record("request", id="a b", note="x\ny=\x1b", seconds=0.25))
    assert text.endswith('request  id="a b" note="x\\ny=\\u001b" seconds=0.25') and "\n" not in text
    told = json.loads(logs.JsonFormatter().format(record("request", id="a\nb")))
    assert told["event"] == "request" and told["id"] == "a\nb" and told["level"] == "info"


def test_lines_that_were_lost_are_counted_and_told(tmp_path: Path) -> None:
    full, file = os.open("/dev/full", os.O_WRONLY), tmp_path / "log"
    handler, dropped = logs.LogHandler(full), logs.LogHandler.dropped
    for _ in range(3):
        handler.emit(record("lost"))
    assert logs.LogHandler.dropped == dropped + 3
    handler._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    handler.emit(record("found"))
    assert file.read_text() == "3 log lines were lost: they could not be written\nfound\n"
    os.close(full)
    os.close(handler._descriptor)


# --- one HTTP request ---


class Client:
    """What the ASGI server would be: it sends these messages and then stays silent."""

    def __init__(self, *messages: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self.messages, self.sent, self.aborted = list(messages), [], False
        self.reads = asyncio.Event()
        self.reads.set()
        self._headers = headers or {}

    def call(self, **options: Any) -> Call:
        pairs = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        scope = {"path": "/", "headers": pairs, "state": {"abort": self.abort}}
        return Call(scope, self.receive, self.send, ServerOptions(**options))

    def abort(self) -> None:
        self.aborted = True

    async def receive(self) -> dict[str, Any]:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message)


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_comes_in_parts_and_has_an_end() -> None:
    async def work() -> None:
        assert await Client(part(b"ab", True), part(b"c", False)).call().body() == b"abc"
        with pytest.raises(ApiError, match="larger than 4 bytes") as refused:
            await Client(part(b"abc", True), part(b"de", False)).call(max_body=4).body()
        assert refused.value.status == 413
        with pytest.raises(Disconnected):
            await Client(part(b"a", True), {"type": "http.disconnect"}).call().body()
        with pytest.raises(ApiError, match="not sent within 1 seconds"):
            await Client(part(b"a", True)).call(read_timeout=1).body()

    asyncio.run(work())


def test_work_ends_when_the_client_has_gone() -> None:
    async def work() -> None:
        ended = []

        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)

        with pytest.raises(Disconnected):
            await Client({"type": "http.disconnect"}).call().unless_gone(slow())
        with pytest.raises(ApiError, match="longer than 1 seconds"):
            await Client().call(request_timeout=1).unless_gone(slow())
        assert ended == [True, True]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(work())


def test_a_client_that_does_not_read_is_let_go_of() -> None:
    async def work() -> None:
        client = Client()
        call = client.call(write_timeout=1)
        await call.begin_stream()
        client.reads.clear()
        with pytest.raises(Disconnected):
            await call.events([{"text": "a"}])
        assert client.aborted

    asyncio.run(work())


@pytest.mark.parametrize(
    ("own", "kept"), [("trace-7.a", True), ("a b", False), ("x" * 99, False), ("", False)]
)
def test_a_clients_own_request_id_is_kept_if_it_is_one(own: str, kept: bool) -> None:
    assert (Client(headers={"x-request-id": own}).call().id == own) is kept


# --- the socket to the engine ---


def test_frames_survive_being_cut_anywhere() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(theirs)
    asked = Asked("1", (1, 2, 3), SamplingParams(stop="x", logit_bias={5: 1.0}), 7, frozenset({9}), -1)
    sent = [Submit([asked, asked]), Cancel(["1"])]
    received = []
    for byte in b"".join(map(frame, sent)):
        ours.sendall(bytes([byte]))
        received += wire.receive(wait=False)
    assert received == sent
    assert received[0].requests[0].request().params == asked.params
    ours.close()
    with pytest.raises(Closed):
        list(wire.receive(wait=True))


def test_an_engine_never_waits_for_a_server_that_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    wire = Wire(theirs)
    message = Cancel(["x" * 1000] * 1000)
    for _ in range(5):  # more than the socket takes
        wire.send(message)
    assert list(wire.receive(wait=False)) == []
    received, whole = bytearray(), frame(message) * 5
    ours.setblocking(False)
    while len(received) < len(whole):
        try:
            received += ours.recv(1 << 20)
        except BlockingIOError:
            assert list(wire.receive(wait=False)) == []
    assert received == whole
