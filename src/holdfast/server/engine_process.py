"""The engine in a process of its own: it reads what it is asked between steps, and writes what steps gave.

It ends when the other side of its socket is closed, whatever closed it; signals are for the server to hear.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..engine import Engine, build_engine
from ..request import FinishReason, Rejected, Request
from . import logs
from .messages import (
    HEADER,
    Ask,
    Cancel,
    CannotStart,
    Down,
    EngineStats,
    Finish,
    Growth,
    Loaded,
    Message,
    Refused,
    Start,
    Stepped,
    Submit,
    Told,
    frame,
)

logger = logs.logger


class Closed(Exception):
    """Nobody is on the other side any more."""


class Wire:
    """Frames in and out, without ever waiting while there is a step to run."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._decode = msgspec.msgpack.Decoder(Down).decode

    def receive(self, *, wait: bool) -> Iterator[Down]:
        """What has come; with `wait`, not before something has."""
        while True:
            waits = wait and not self._complete()
            writes = [self._connection] if self._unsent else []
            readable, writable, _ = select.select([self._connection], writes, [], None if waits else 0)
            if writable:
                self._flush()
            if readable:
                self._read()
            if not waits or self._complete():
                break
        while self._complete():
            yield self._take()

    def send(self, message: Message) -> None:
        self._unsent.append(memoryview(frame(message)))
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent[0])
                if sent == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][sent:]
        except BlockingIOError:
            pass  # the server is busy; what is left goes with the next step
        except OSError as error:
            raise Closed from error

    def _read(self) -> None:
        try:
            data = self._connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        self._received += data

    def _complete(self) -> bool:
        have = len(self._received)
        return have >= HEADER.size and have >= HEADER.size + HEADER.unpack_from(self._received)[0]

    def _take(self) -> Down:
        end = HEADER.size + HEADER.unpack_from(self._received)[0]
        body = bytes(self._received[HEADER.size : end])
        del self._received[:end]
        return self._decode(body)


class EngineLoop:
    def __init__(self, engine: Engine, wire: Wire) -> None:
        self._engine = engine
        self._wire = wire
        self._told: dict[str, int] = {}  # by request that runs: how many of its tokens the server has

    def run(self) -> None:
        while True:
            for message in self._wire.receive(wait=not self._engine.has_work):
                self._handle(message)
            if self._engine.has_work and (growth := self._step()):
                self._wire.send(Stepped(growth))

    def _handle(self, message: Down) -> None:
        match message:
            case Submit(requests):
                for asked in requests:
                    self._submit(asked.request())
            case Cancel(request_ids):
                for request_id in request_ids:
                    self._engine.cancel(request_id)
                    self._told.pop(request_id, None)
            case Finish(request_id, kept):
                self._engine.finish(request_id, FinishReason.STOP, kept=kept)
                self._told.pop(request_id, None)
            case Ask(number, what):
                if what == "reset":
                    self._engine.scheduler.reset_cache()
                stats = engine_stats(self._engine)
                if what == "requests":
                    stats.live = self._engine.scheduler.live_requests()
                self._wire.send(Told(number, stats))

    def _submit(self, request: Request) -> None:
        try:
            self._engine.submit(request)
        except Rejected as refused:
            self._wire.send(Refused(request.id, refused.reason))
        else:
            self._told[request.id] = 0

    def _step(self) -> list[Growth]:
        return [self._growth(request) for request in self._engine.step() if request.id in self._told]

    def _growth(self, request: Request) -> Growth:
        told, ended = self._told[request.id], request.finish_reason is not None
        output = request.tokens[len(request.prompt) + told :]
        if told and not (ended or request.logprobs):  # as most do
            self._told[request.id] = told + len(output)
            return Growth(request.id, output)
        if ended:
            del self._told[request.id]
        else:
            self._told[request.id] = told + len(output)
        return Growth(
            request.id,
            output,
            request.finish_reason,
            request.metrics if ended or not told else None,
            request.logprobs[told:],
            request.prompt_logprobs if output and not told else [],
            str(request.error) if request.error else None,
        )


def engine_stats(engine: Engine) -> EngineStats:
    scheduler = engine.scheduler
    return EngineStats(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        counters=scheduler.counters,
        cache=scheduler.cache_stats(),
        findings=engine.findings,
        speculation=scheduler.speculation_stats(),
        constraints=engine.constraint_stats,
    )


def main() -> None:
    """`python -m holdfast.server.engine_process FD`, with the server at the other end of that socket."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the server drains first, and then closes the socket
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    try:
        [start] = wire.receive(wait=True)
        assert isinstance(start, Start)
        logs.configure(**start.log)
        try:
            engine = build_engine(Path(start.directory), start.config)
        except (OSError, ValueError, RuntimeError) as error:
            wire.send(CannotStart(str(error)))
            sys.exit(1)
        gc.collect()
        gc.freeze()  # what was loaded stays: no later collection has to look at it
        wire.send(Loaded(engine.capacity.as_dict(), engine.capacity.limits))
        EngineLoop(engine, wire).run()
    except Closed:
        os._exit(0)  # nobody is left to wait for a tidy end
    except Exception:
        logger.exception("the engine failed, and its process ends")
        sys.exit(1)


if __name__ == "__main__":
    main()
