"""The routes, and what lies behind those that generate nothing."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..request import Rejected
from ..version import version
from . import dashboard
from .call import GONE, Call, Disconnected
from .client import EngineClient, EngineDown, RequestFailed
from .errors import ApiError
from .forms import template_variables, tool_format
from .generate import Generator
from .logs import event, logger
from .metrics import Metrics
from .model import ServedModel
from .openapi import document
from .options import ServerOptions
from .protocol import DetokenizeRequest, TokenizeRequest, decode, plain_messages

Handler = Callable[[Call], Awaitable[None]]


class Api:
    def __init__(
        self, model: ServedModel, options: ServerOptions, client: EngineClient, metrics: Metrics
    ) -> None:
        self.options = options
        self._model, self._client, self._metrics = model, client, metrics
        self._generator = Generator(model, options, client, metrics)

    def routes(self) -> list[Route]:
        def route(path: str, handler: Handler, method: str = "GET", *, guarded: bool = True) -> Route:
            return Route(path, Endpoint(self, path, handler, guarded=guarded), methods=[method])

        return [
            route("/v1/chat/completions", self._generator.chat, "POST"),
            route("/v1/completions", self._generator.complete, "POST"),
            route("/v1/models", self.models),
            route("/v1/models/{name:path}", self.model),
            route("/tokenize", self.tokenize, "POST"),
            route("/detokenize", self.detokenize, "POST"),
            route("/reset_prefix_cache", self.reset_prefix_cache, "POST"),
            route("/plan", self.plan),
            route("/requests", self.requests),
            route("/metrics", self.metrics),
            route("/openapi.json", self.openapi),
            route("/health", self.health, guarded=False),
            route("/version", self.version, guarded=False),
            *(
                route(path, partial(dashboard.send, page), guarded=False)
                for path, page in dashboard.FILES.items()
            ),
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

    # --- text ---

    async def tokenize(self, call: Call) -> None:
        asked = decode(TokenizeRequest, await call.body())
        self._model.check_name(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if asked.messages is not None:
            if asked.tools:
                tool_format(self._model.intake.tokenizer)
            messages, prompted = plain_messages(asked.messages), asked.add_generation_prompt is not False
            tokens = await self._model.apply_chat(messages, prompted, **template_variables(asked))
        else:
            tokens = await self._model.encode(asked.prompt or "", asked.add_special_tokens is not False)
        limits = self._client.limits
        room = limits.max_model_len if limits else None
        await call.reply({"tokens": tokens, "count": len(tokens), "max_model_len": room})

    async def detokenize(self, call: Call) -> None:
        asked = decode(DetokenizeRequest, await call.body())
        self._model.check_name(asked.model)
        if any(not 0 <= token < 2**32 for token in asked.tokens):
            raise ApiError(400, "tokens must be ids, 0 or more", param="tokens")
        text = await self._model.decode(asked.tokens, bool(asked.skip_special_tokens))
        await call.reply({"prompt": text})

    # --- the server itself ---

    async def models(self, call: Call) -> None:
        await call.reply({"object": "list", "data": [self._card()]})

    async def model(self, call: Call) -> None:
        self._model.check_name(call.path.removeprefix("/v1/models/"))
        await call.reply(self._card())

    def _card(self) -> dict[str, Any]:
        limits = self._client.limits
        return {
            "id": self._model.name,
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

    async def requests(self, call: Call) -> None:
        stats = await self._client.ask("requests", self.options.health_timeout)
        await call.reply({"requests": stats.live})

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
