"""The routes, and what lies behind each."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..config import Limits
from ..intake import Intake
from ..request import Rejected, Request, SamplingParams
from ..text import Tokenizer
from ..version import version
from .call import GONE, Call, Disconnected
from .client import EngineClient, EngineDown, Job, RequestFailed
from .errors import ApiError
from .logs import event, logger
from .metrics import Metrics
from .openapi import document
from .options import ServerOptions
from .protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generation,
    TokenizeRequest,
    chat_logprobs,
    completion_prompts,
    decode,
    plain_messages,
    refuse_unsupported,
    sampling_params,
)
from .replies import ChatReply, Choice, CompletionReply, Echo, Reply, TokenNames, usage

COMPLETION_TOKENS = 16
"""Of /v1/completions if max_tokens is left out, as OpenAI has it. A chat goes on to the end of the context."""

Handler = Callable[[Call], Awaitable[None]]


class Api:
    def __init__(
        self, name: str, options: ServerOptions, intake: Intake, client: EngineClient, metrics: Metrics
    ) -> None:
        self.name, self.options = name, options
        self._intake, self._client, self._metrics = intake, client, metrics
        self._token_names = TokenNames(intake.tokenizer)
        self._wanted = 0  # answers that are asked for and not ended
        advised = intake.default_params()
        # OpenAI's default, where the model's authors advise nothing
        self._advised = replace(advised, temperature=1.0) if advised == SamplingParams() else advised

    def routes(self) -> list[Route]:
        def route(path: str, handler: Handler, method: str = "GET", *, guarded: bool = True) -> Route:
            return Route(path, Endpoint(self, path, handler, guarded=guarded), methods=[method])

        return [
            route("/v1/chat/completions", self.chat, "POST"),
            route("/v1/completions", self.complete, "POST"),
            route("/v1/models", self.models),
            route("/v1/models/{name:path}", self.model),
            route("/tokenize", self.tokenize, "POST"),
            route("/detokenize", self.detokenize, "POST"),
            route("/reset_prefix_cache", self.reset_prefix_cache, "POST"),
            route("/plan", self.plan),
            route("/metrics", self.metrics),
            route("/openapi.json", self.openapi),
            route("/health", self.health, guarded=False),
            route("/version", self.version, guarded=False),
        ]

    def check_key(self, call: Call) -> None:
        if not (keys := self.options.keys):
            return
        scheme, _, token = call.header("authorization").partition(" ")
        given = token.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
        if not any([hmac.compare_digest(given, key.encode()) for key in keys]):  # a list: always all of them
            wrong = "the API key is wrong" if given else "an API key is needed: Authorization: Bearer KEY"
            raise ApiError(401, wrong, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    def count(self, path: str, status: int) -> None:
        self._metrics.responses.labels(path, status).inc()

    # --- generation ---

    async def complete(self, call: Call) -> None:
        asked = decode(CompletionRequest, await call.body())
        limits = self._check(asked)
        refuse_unsupported(asked)
        prompts = completion_prompts(asked)
        wanted = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        params = sampling_params(
            asked,
            self._advised,
            max_tokens=self._max_tokens(wanted, "max_tokens"),
            logprobs=asked.logprobs,
            prompt_logprobs=asked.logprobs if asked.echo else None,
        )
        names = None if asked.logprobs is None else self._token_names
        reply = CompletionReply(f"cmpl-{call.id}", self.name, names, bool(asked.return_token_ids))
        special = asked.add_special_tokens is not False
        with self._room(len(prompts) * params.n, limits):
            tokens = [await self._tokens(_encoder, prompt, special) for prompt in prompts]
            texts = [self._echoed(p, t) for p, t in zip(prompts, tokens, strict=True)] if asked.echo else None
            await self._generate(call, asked, tokens, params, reply, texts, wanted)

    async def chat(self, call: Call) -> None:
        asked = decode(ChatRequest, await call.body())
        limits = self._check(asked)
        refuse_unsupported(asked)
        messages = plain_messages(asked.messages)
        name = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
        wanted = getattr(asked, name)
        if wanted is None:
            wanted = self.options.max_output_tokens or limits.max_model_len
        params = sampling_params(
            asked, self._advised, max_tokens=self._max_tokens(wanted, name), logprobs=chat_logprobs(asked)
        )
        names = self._token_names if asked.logprobs else None
        reply = ChatReply(f"chatcmpl-{call.id}", self.name, names, bool(asked.return_token_ids))
        prompted = asked.add_generation_prompt is not False
        variables = asked.chat_template_kwargs or {}
        with self._room(params.n, limits):
            tokens = await self._tokens(Tokenizer.apply_chat, messages, prompted, **variables)
            await self._generate(call, asked, [tokens], params, reply, None, wanted)

    async def _generate(
        self,
        call: Call,
        asked: Generation,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        reply: Reply,
        echoed: Sequence[str] | None,
        wanted: int,
    ) -> None:
        requests = [self._requests(tokens, params, asked.priority or 0) for tokens in prompts]
        call.fields["prompt_tokens"] = sum(len(tokens) for tokens in prompts)
        async with self._client.job(requests, streaming=bool(asked.stream)) as job:
            choices = list(_choices(job, wanted, echoed))
            try:
                work = self._stream if asked.stream else self._answer
                await call.unless_gone(work(call, job, choices, reply, asked))
            finally:
                call.fields["completion_tokens"] = sum(choice.answer.length for choice in choices)
                if self.options.log_text and self._intake.tokenizer:
                    call.fields["prompt"] = self._intake.tokenizer.decode(prompts[0])
                    call.fields["text"] = [choice.answer.text for choice in choices]

    async def _answer(
        self, call: Call, job: Job, choices: list[Choice], reply: Reply, asked: Generation
    ) -> None:
        await job.done()
        pieces = [piece for choice in choices if (piece := choice.take())]
        await call.reply(reply.whole(pieces, usage(job.answers, choices)))

    async def _stream(
        self, call: Call, job: Job, choices: list[Choice], reply: Reply, asked: Generation
    ) -> None:
        await job.grown()  # before anything is sent: what goes wrong until then has a status of its own
        await call.begin_stream()
        unused = {"usage": None} if asked.with_usage else {}
        if opening := reply.opening(len(choices)):
            await call.events([opening | unused])
        with_tokens = reply.names is not None or reply.with_token_ids
        while True:
            pieces = [piece for choice in choices if (piece := choice.take())]
            shown = [p for p in pieces if p.text or p.finish_reason or with_tokens]
            if shown:
                await call.events([reply.chunk([piece]) | unused for piece in shown])
            if all(choice.ended for choice in choices):
                break
            await job.grown()
        if asked.with_usage:
            await call.events([reply.chunk([], usage(job.answers, choices))])
        await call.end_stream()

    def _check(self, asked: Generation) -> Limits:
        self._check_model(asked.model)
        if (limits := self._client.limits) is None:
            raise EngineDown(self._client.failure or f"the engine is {self._client.state}")
        return limits

    def _check_model(self, name: str | None) -> None:
        if name not in (None, "", self.name):
            wrong = f"there is no model {name!r} here; the one that is served is {self.name!r}"
            raise ApiError(404, wrong, param="model", code="model_not_found")

    def _max_tokens(self, wanted: int, name: str) -> int:
        most = self.options.max_output_tokens
        if wanted < 0:
            raise ApiError(400, f"{name}={wanted} must be 0 or more", param=name)
        if most is not None and wanted > most:
            raise ApiError(400, f"{name}={wanted} is more than this server gives: {most}", param=name)
        return max(1, wanted)

    def _requests(self, tokens: Sequence[int], params: SamplingParams, priority: int) -> list[Request]:
        most = self.options.max_prompt_tokens
        if most is not None and len(tokens) > most:
            wrong = f"the prompt has {len(tokens)} tokens, more than this server takes: {most}"
            raise ApiError(400, wrong, param="prompt", code="context_length_exceeded")
        return self._intake.requests(tokens, params, priority)

    @contextlib.contextmanager
    def _room(self, count: int, limits: Limits) -> Iterator[None]:
        """Hold a place for so many answers, or say when to come again."""
        most = limits.max_num_seqs + self.options.max_queue
        if count > min(self.options.max_choices, most):
            wrong = (
                f"{count} answers were asked for at once; the most is {min(self.options.max_choices, most)}"
            )
            raise ApiError(400, wrong, param="n")
        if self._wanted + count > most:
            self._metrics.rejected.labels("queue").inc()
            full = f"{self._wanted} answers run or wait, and {most} may; try again later"
            raise ApiError(429, full, code="queue_full", headers={"retry-after": "1"})
        self._wanted += count
        try:
            yield
        finally:
            self._wanted -= count

    async def _tokens(self, encode: Callable[..., list[int]], *args: Any, **kwargs: Any) -> list[int]:
        """In a thread: a long text must not keep others waiting."""
        if encode is _encoder and not isinstance(args[0], str):
            return list(args[0])
        if self._intake.tokenizer is None:
            raise ApiError(400, "the model has no tokenizer.json, so prompts must be token ids")
        try:
            return await asyncio.to_thread(encode, self._intake.tokenizer, *args, **kwargs)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    def _echoed(self, prompt: str | list[int], tokens: list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._intake.tokenizer.decode(tokens) if self._intake.tokenizer else ""

    # --- text ---

    async def tokenize(self, call: Call) -> None:
        asked = decode(TokenizeRequest, await call.body())
        self._check_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if asked.messages is not None:
            messages, prompted = plain_messages(asked.messages), asked.add_generation_prompt is not False
            tokens = await self._tokens(Tokenizer.apply_chat, messages, prompted)
        else:
            tokens = await self._tokens(_encoder, asked.prompt, asked.add_special_tokens is not False)
        limits = self._client.limits
        room = limits.max_model_len if limits else None
        await call.reply({"tokens": tokens, "count": len(tokens), "max_model_len": room})

    async def detokenize(self, call: Call) -> None:
        asked = decode(DetokenizeRequest, await call.body())
        self._check_model(asked.model)
        if (tokenizer := self._intake.tokenizer) is None:
            raise ApiError(400, "the model has no tokenizer.json")
        if any(not 0 <= token < 2**32 for token in asked.tokens):
            raise ApiError(400, "tokens must be ids, 0 or more", param="tokens")
        skip = bool(asked.skip_special_tokens)
        text = await asyncio.to_thread(tokenizer.decode, asked.tokens, skip_special_tokens=skip)
        await call.reply({"prompt": text})

    # --- the server itself ---

    async def models(self, call: Call) -> None:
        await call.reply({"object": "list", "data": [self._card()]})

    async def model(self, call: Call) -> None:
        self._check_model(call.path.removeprefix("/v1/models/"))
        await call.reply(self._card())

    def _card(self) -> dict[str, Any]:
        limits = self._client.limits
        return {
            "id": self.name,
            "object": "model",
            "created": self._client.created,
            "owned_by": "holdfast",
            "max_model_len": limits.max_model_len if limits else None,
        }

    async def health(self, call: Call) -> None:
        """Asks the engine: a process that is there, but stuck, is not healthy."""
        try:
            await self._client.ask("stats", self.options.health_timeout)
        except EngineDown as down:
            reason = self._client.failure or str(down)  # what it is now, not when it was asked
            await call.reply({"status": self._client.state, "reason": reason}, 503)
        except TimeoutError:
            stuck = f"the engine said nothing for {self.options.health_timeout:g} seconds"
            await call.reply({"status": "stuck", "reason": stuck}, 503)
        else:
            await call.reply({"status": "ok", "deaths": self._client.deaths})

    async def version(self, call: Call) -> None:
        await call.reply({"version": version()})

    async def metrics(self, call: Call) -> None:
        with contextlib.suppress(EngineDown, TimeoutError):  # then they are what they last were
            self._metrics.stats = await self._client.ask("stats", patience=1.0)
        self._metrics.tasks = len(asyncio.all_tasks())
        await call.reply_bytes(self._metrics.page(), "text/plain; version=0.0.4; charset=utf-8")

    async def plan(self, call: Call) -> None:
        if not self._client.capacity:
            raise EngineDown(self._client.failure or f"the engine is {self._client.state}")
        await call.reply(self._client.capacity)

    async def reset_prefix_cache(self, call: Call) -> None:
        await self._client.ask("reset", self.options.health_timeout)
        await call.reply({"status": "ok"})

    async def openapi(self, call: Call) -> None:
        await call.reply(document(version()))


class Endpoint:
    """A route's ASGI side: keys, errors, log lines."""

    def __init__(self, api: Api, path: str, handler: Handler, *, guarded: bool) -> None:
        self._api, self._path, self._handler, self._guarded = api, path, handler, guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send, self._api.options)
        try:
            if self._guarded:
                self._api.check_key(call)
            await self._handle(call)
        except ApiError as error:
            if error.status >= 500 or self._api.options.log_text:  # others may quote the request
                call.fields["error"] = error.message
            with contextlib.suppress(Disconnected):
                await call.fail(error)
        except Disconnected:
            call.status = GONE
        finally:
            self._api.count(self._path, call.status)
            self._log(call)

    def _log(self, call: Call) -> None:
        level = logging.INFO if self._path.startswith("/v1/") else logging.DEBUG
        told = {"id": call.id, "path": self._path, "status": call.status, "seconds": round(call.seconds, 4)}
        event("request", level=level, **told, **call.fields)

    async def _handle(self, call: Call) -> None:
        """Whatever a handler raises, as an answer to the client."""
        try:
            await self._handler(call)
        except (ApiError, Disconnected):
            raise
        except Rejected as refused:
            raise ApiError(400, refused.reason) from None
        except EngineDown as down:
            again = {"retry-after": "5"}
            raise ApiError(503, str(down), code="engine_down", headers=again) from None
        except TimeoutError:
            raise ApiError(504, "the engine did not answer in time") from None
        except RequestFailed as failed:
            raise ApiError(500, f"the answer cannot be trusted, so it was ended: {failed}") from None
        except asyncio.CancelledError:  # only when the server stops, and its patience has ended
            raise ApiError(503, "the server is stopping", code="stopping") from None
        except Exception:
            logger.exception("request %s failed", call.id)
            raise ApiError(500, f"something is wrong here; the log says what, at request {call.id}") from None


def make_app(api: Api, client: EngineClient, on_failure: Callable[[str], None]) -> Starlette:
    """`on_failure` is told if the engine cannot even start."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        client.start()
        watch = asyncio.create_task(_watch(client, on_failure))
        yield
        watch.cancel()
        await client.close()

    async def no_such(request: HttpRequest, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        told = f"{request.method} {request.url.path} is not here; /openapi.json lists what is"
        return JSONResponse(ApiError(error.status_code, told).body(), error.status_code, error.headers)

    return Starlette(routes=api.routes(), lifespan=lifespan, exception_handlers={HTTPException: no_such})


async def _watch(client: EngineClient, on_failure: Callable[[str], None]) -> None:
    try:
        await client.wait_until_ready()
    except EngineDown as down:
        on_failure(str(down))


def _choices(job: Job, wanted: int, echoed: Sequence[str] | None) -> Iterator[Choice]:
    for place, answers in enumerate(job.answers):
        echo = Echo(echoed[place], answers[0].request) if echoed else None
        for number, answer in enumerate(answers):
            yield Choice(place * len(answers) + number, answer, wanted, echo)


def _encoder(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)
