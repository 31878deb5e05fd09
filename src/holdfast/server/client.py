"""The server's side of its engine: requests go down, tokens come up and become text here.

The engine's process is watched. If it dies, whoever waits is told; it is started once more, and then no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from ..answer import Answer
from ..config import Limits
from ..intake import Intake
from ..request import Rejected, Request
from ..scheduler.admission import refusal
from .logs import event
from .messages import (
    HEADER,
    Ask,
    Asked,
    Cancel,
    CannotStart,
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
    Up,
    frame,
)
from .metrics import Metrics

MAX_FRAME_BUFFER = 1 << 20


class EngineDown(RuntimeError):
    """The engine is not there, or went away while the request ran."""


class RequestFailed(RuntimeError):
    """The sanitizer found its state corrupt. No other request is affected."""


class EngineState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DEAD = "dead"


class Job:
    """All the answers that one HTTP request asked for, prompt by prompt."""

    def __init__(self, answers: list[list[Answer]], arrived: float) -> None:
        self.answers, self.arrived = answers, arrived
        self._news = asyncio.Event()
        self._failure: Exception | None = None

    def __iter__(self) -> Any:
        """Every answer, those to the first prompt first."""
        return (answer for answers in self.answers for answer in answers)

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self)

    async def grown(self) -> None:
        """Returns when there is more than there was the last time. Raises what ended it, if it was ended."""
        await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    async def done(self) -> None:
        while not self.finished:
            await self.grown()
        if self._failure is not None:  # it may have come with the end
            raise self._failure

    def tell(self, failure: Exception | None = None) -> None:
        self._failure = failure or self._failure
        self._news.set()


class EngineClient:
    """start     what the engine's process needs to know
    intake    the tokenizer's side of the same model
    """

    def __init__(self, start: Start, intake: Intake, metrics: Metrics) -> None:
        self.state = EngineState.STARTING
        self.failure = ""
        """Why there is no engine, if there is none."""
        self.capacity: dict[str, Any] = {}
        self.limits: Limits | None = None
        self.stats: EngineStats | None = None
        """As they were last told."""
        self.created = int(time.time())
        self.deaths = 0
        self._start, self._intake, self._metrics = start, intake, metrics
        self._live: dict[str, tuple[Answer, Job]] = {}  # by request
        self._questions: dict[int, asyncio.Future[EngineStats]] = {}
        self._asked = 0
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._decode = msgspec.msgpack.Decoder(Up).decode
        self._watch: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # of the state

    @property
    def num_live(self) -> int:
        return len(self._live)

    @property
    def engine_pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self._watch = asyncio.create_task(self._keep_running())

    async def wait_until_ready(self) -> None:
        """Raises EngineDown if it cannot be."""
        while self.state is not EngineState.READY:
            if self.state is EngineState.DEAD:
                raise EngineDown(self.failure)
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """The engine's process sees its socket closed, and ends."""
        if self._watch:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._end_process(patience=5.0)

    # --- requests ---

    @contextlib.asynccontextmanager
    async def job(
        self,
        prompts: Sequence[Sequence[Request]],
        *,
        streaming: bool,
        arrived: float,
        shown: Sequence[str] = (),
    ) -> AsyncIterator[Job]:
        """These requests, as long as the context lasts: what still runs when it is left is cancelled. Special tokens
        in `shown` are part of the text.

        Raises Rejected if one can never run, and then none does.
        """
        self._check(prompts)
        tokenizer = self._intake.tokenizer
        answers = [
            [Answer(r, tokenizer, streaming=streaming, shown=shown) for r in requests] for requests in prompts
        ]
        job = Job(answers, arrived)
        for answer in job:
            self._live[answer.request.id] = (answer, job)
        self._send(Submit([Asked.of(answer.request) for answer in job]))
        try:
            yield job
        finally:
            left = [a.request.id for a in job if self._live.pop(a.request.id, None)]
            for request_id in left:
                self._metrics.forget(request_id)
            if left and self.state is EngineState.READY:
                self._send(Cancel(left))

    def _check(self, prompts: Sequence[Sequence[Request]]) -> None:
        if self.state is not EngineState.READY or self.limits is None:
            raise EngineDown(self.failure or f"the engine is {self.state}")
        for place, requests in enumerate(prompts):
            if reason := refusal(requests[0], self.limits):
                where = f"prompt {place}: " if len(prompts) > 1 else ""
                raise Rejected(requests[0].id, where + reason)

    # --- questions ---

    async def ask(self, what: str, patience: float) -> EngineStats:
        """What the engine says between two steps. Raises TimeoutError if it says nothing."""
        if self.state is not EngineState.READY:
            raise EngineDown(self.failure or f"the engine is {self.state}")
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._send(Ask(number, what))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(patience):
                self.stats = await answer
        finally:
            self._questions.pop(number, None)
        return self.stats

    # --- the process ---

    async def _keep_running(self) -> None:
        died = await self._run()
        if not died:
            return  # it never ran, so it would not the next time
        self._say_state(EngineState.RESTARTING, f"the engine {died}; it is being started again")
        event("the engine died, and is started once more", level=logging.ERROR, cause=died)
        if died := await self._run():
            self._say_state(EngineState.DEAD, f"the engine {died} for the second time; restart the server")
        event(
            "the engine died again, and is not started a third time", level=logging.ERROR, cause=self.failure
        )

    async def _run(self) -> str:
        """One life of the engine. How it ended; "" if it never began."""
        reader = await self._start_process()
        try:
            while True:
                size = HEADER.unpack(await reader.readexactly(HEADER.size))[0]
                message = self._decode(await reader.readexactly(size))
                if isinstance(message, CannotStart):
                    self._say_state(EngineState.DEAD, message.reason)
                    return ""
                self._handle(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            died = await self._end_process(patience=1.0)
        began = self.state is EngineState.READY
        self.deaths += 1
        self._metrics.engine_deaths.inc()
        self._say_state(EngineState.DEAD, f"the engine {died}")
        self._tell_all(EngineDown(self.failure))
        return died if began else ""

    def _tell_all(self, failure: EngineDown) -> None:
        for request_id, (_, job) in self._live.items():
            self._metrics.forget(request_id)
            job.tell(failure)
        self._live.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(failure)

    async def _start_process(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast.server.engine_process",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_FRAME_BUFFER)
        self._send(self._start)
        return reader

    async def _end_process(self, patience: float) -> str:
        """Close the socket, wait for the process, kill it if it stays. Says how it ended."""
        if self._writer:
            self._writer.close()
        process = self._process
        if process is None:
            return "was not there"
        try:
            async with asyncio.timeout(patience):
                status = await process.wait()
        except TimeoutError:
            process.kill()
            status = await process.wait()
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"

    def _send(self, message: Message) -> None:
        assert self._writer is not None
        self._writer.write(frame(message))

    def _say_state(self, state: EngineState, failure: str = "") -> None:
        self.state, self.failure = state, failure
        self._changed.set()

    # --- what comes up ---

    def _handle(self, message: Up) -> None:
        match message:
            case Stepped(growth):
                for grown in growth:
                    self._grow(grown)
            case Told(number, stats):
                if (question := self._questions.get(number)) and not question.done():
                    question.set_result(stats)
            case Refused(request_id, reason):
                if found := self._live.get(request_id):
                    found[1].tell(Rejected(request_id, reason))
            case Loaded(capacity, limits):
                self.capacity, self.limits = capacity, limits
                self._say_state(EngineState.READY)
                event("ready", **self._summary(limits))

    def _summary(self, limits: Limits) -> dict[str, Any]:
        told = {"engine_pid": self.engine_pid, "kv_tokens": limits.num_pages * limits.page_size}
        return told | {"max_num_seqs": limits.max_num_seqs, "max_model_len": limits.max_model_len}

    def _grow(self, growth: Growth) -> None:
        found = self._live.get(growth.request_id)
        if found is None:
            return  # cancelled; the engine did not know yet
        answer, job = found
        request = answer.request
        request.tokens += growth.tokens
        request.logprobs += growth.logprobs
        request.prompt_logprobs += growth.prompt_logprobs
        request.finish_reason = growth.finish_reason
        request.metrics = growth.metrics or request.metrics
        if answer.advance() and growth.finish_reason is None:
            self._send(Finish(request.id, answer.length))
        self._metrics.grew(request, len(growth.tokens), job.arrived, ended=answer.finished)
        if growth.error:
            job.tell(RequestFailed(growth.error))
        if answer.finished:
            del self._live[request.id]
        job.tell()
