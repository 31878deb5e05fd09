"""Generation: from what a client asks to the pieces it gets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..config import Limits
from ..request import Request, SamplingParams
from .call import Call
from .client import EngineClient, EngineDown, Job
from .errors import ApiError
from .forms import Turn, asked_form, template_variables
from .metrics import Metrics
from .model import ServedModel
from .options import ServerOptions
from .protocol import (
    ChatRequest,
    CompletionRequest,
    Generation,
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


PROMPT_END = 8
"""Tokens in which it can be seen whether a prompt opens thoughts."""


@dataclass(frozen=True)
class Order:
    """What was asked, and what was made of it."""

    asked: Generation
    params: SamplingParams
    reply: Reply
    most: int
    """Tokens of each answer. 0 if only the prompt is to be scored."""
    turn: Turn | None = None
    """Of a conversation."""


class Generator:
    def __init__(
        self, model: ServedModel, options: ServerOptions, client: EngineClient, metrics: Metrics
    ) -> None:
        self._model, self._options, self._client, self._metrics = model, options, client, metrics
        self._names = TokenNames(model.intake.tokenizer)
        self._arriving = 0  # answers whose prompts are still being read
        advised = model.intake.default_params()
        # OpenAI's default, where the model's authors advise nothing
        self._advised = replace(advised, temperature=1.0) if advised == SamplingParams() else advised

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
            structured=asked_form(asked),
        )
        names = None if asked.logprobs is None else self._names
        reply = CompletionReply(f"cmpl-{call.id}", self._model.name, names, bool(asked.return_token_ids))
        special = asked.add_special_tokens is not False
        with self._room(len(prompts) * params.n, limits):
            tokens = [await self._model.encode(prompt, special) for prompt in prompts]
        texts = [self._echoed(p, t) for p, t in zip(prompts, tokens, strict=True)] if asked.echo else None
        await self._generate(call, Order(asked, params, reply, wanted), tokens, texts)

    async def chat(self, call: Call) -> None:
        asked = decode(ChatRequest, await call.body())
        limits = self._check(asked)
        messages, variables = plain_messages(asked.messages), template_variables(asked)
        turn = Turn.of(asked, self._model.intake.tokenizer)
        name = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
        wanted = getattr(asked, name)
        if wanted is None:
            wanted = self._options.max_output_tokens or limits.max_model_len
        params = sampling_params(
            asked,
            self._advised,
            max_tokens=self._max_tokens(wanted, name),
            logprobs=chat_logprobs(asked),
            structured=turn.form,
        )
        names = self._names if asked.logprobs else None
        reply = ChatReply(f"chatcmpl-{call.id}", self._model.name, names, bool(asked.return_token_ids))
        prompted = asked.add_generation_prompt is not False
        with self._room(params.n, limits):
            tokens = await self._model.apply_chat(messages, prompted, **variables)
            turn = turn.after(await self._model.decode(tokens[-PROMPT_END:], skip_special_tokens=False))
        await self._generate(call, Order(asked, turn.formed(params), reply, wanted, turn), [tokens])

    async def _generate(
        self,
        call: Call,
        order: Order,
        prompts: Sequence[Sequence[int]],
        echoed: Sequence[str] | None = None,
    ) -> None:
        requests = [self._requests(tokens, order) for tokens in prompts]
        call.fields["prompt_tokens"] = sum(len(tokens) for tokens in prompts)
        streaming = bool(order.asked.stream)
        shown = order.turn.shown if order.turn else ()
        async with self._client.job(requests, streaming=streaming, arrived=call.began, shown=shown) as job:
            choices = list(_choices(job, order, echoed))
            try:
                work = self._stream if streaming else self._answer
                await call.unless_gone(work(call, order, job, choices))
            finally:
                call.fields["completion_tokens"] = sum(choice.answer.length for choice in choices)
                if self._options.log_text and self._model.intake.tokenizer:
                    call.fields["prompt"] = self._model.intake.tokenizer.decode(prompts[0])
                    call.fields["text"] = [choice.answer.text for choice in choices]

    async def _answer(self, call: Call, order: Order, job: Job, choices: list[Choice]) -> None:
        await job.done()
        pieces = [piece for choice in choices if (piece := choice.take())]
        await call.reply(order.reply.whole(pieces, usage(job.answers, choices)))

    async def _stream(self, call: Call, order: Order, job: Job, choices: list[Choice]) -> None:
        await job.grown()  # before anything is sent: what goes wrong until then has a status of its own
        await call.begin_stream()
        reply, with_usage = order.reply, order.asked.with_usage
        unused = {"usage": None} if with_usage else {}
        if opening := reply.opening(len(choices)):
            await call.events([opening | unused])
        with_tokens = reply.names is not None or reply.with_token_ids
        while True:
            pieces = [piece for choice in choices if (piece := choice.take())]
            shown = [p for p in pieces if p.shows or with_tokens]
            if shown:
                await call.events([reply.chunk([piece]) | unused for piece in shown])
            if all(choice.ended for choice in choices):
                break
            await job.grown()
        if with_usage:
            await call.events([reply.chunk([], usage(job.answers, choices))])
        await call.end_stream()

    def _check(self, asked: Generation) -> Limits:
        self._model.check_name(asked.model)
        if (limits := self._client.limits) is None:
            raise EngineDown(self._client.failure or f"the engine is {self._client.state}")
        return limits

    def _max_tokens(self, wanted: int, name: str) -> int:
        most = self._options.max_output_tokens
        if wanted < 0:
            raise ApiError(400, f"{name}={wanted} must be 0 or more", param=name)
        if most is not None and wanted > most:
            raise ApiError(400, f"{name}={wanted} is more than this server gives: {most}", param=name)
        return max(1, wanted)

    def _requests(self, tokens: Sequence[int], order: Order) -> list[Request]:
        most = self._options.max_prompt_tokens
        if most is not None and len(tokens) > most:
            wrong = f"the prompt has {len(tokens)} tokens, more than this server takes: {most}"
            raise ApiError(400, wrong, param="prompt", code="context_length_exceeded")
        return self._model.intake.requests(tokens, order.params, order.asked.priority or 0)

    @contextlib.contextmanager
    def _room(self, count: int, limits: Limits) -> Iterator[None]:
        """Hold a place for so many answers until the engine has them, or say when to come again."""
        most = limits.max_num_seqs + self._options.max_queue
        if count > (at_once := min(self._options.max_choices, most)):
            raise ApiError(400, f"{count} answers were asked for at once; the most is {at_once}", param="n")
        if (there := self._client.num_live + self._arriving) + count > most:
            self._metrics.rejected.labels("queue").inc()
            full = f"{there} answers run or wait, and {most} may; try again later"
            raise ApiError(429, full, code="queue_full", headers={"retry-after": "1"})
        self._arriving += count
        try:
            yield
        finally:
            self._arriving -= count

    def _echoed(self, prompt: str | list[int], tokens: list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._model.intake.tokenizer.decode(tokens) if self._model.intake.tokenizer else ""


def _choices(job: Job, order: Order, echoed: Sequence[str] | None) -> Iterator[Choice]:
    for place, answers in enumerate(job.answers):
        echo = Echo(echoed[place], answers[0].request) if echoed else None
        for number, answer in enumerate(answers):
            reader = order.turn.reader() if order.turn else None
            yield Choice(place * len(answers) + number, answer, order.most, echo, reader)
