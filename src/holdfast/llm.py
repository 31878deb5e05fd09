"""The offline interface: prompts in, outputs out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .config import EngineConfig
from .engine import build_engine
from .request import Rejected, Request, RequestOutput, SamplingParams
from .text import Tokenizer, eos_token_ids

Message = Mapping[str, Any]
Prompt = str | Sequence[int]


class LLM:
    """A model and the engine that serves it.

    model    a directory with config.json, *.safetensors and, for text, tokenizer.json; None: the demo model
    options  any field of EngineConfig: device, dtype, state_dtype, max_num_seqs, page_size, ...
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        self.config = _engine_config(options)
        directory = _find(model)
        self._engine = build_engine(directory, self.config)
        self.tokenizer = Tokenizer.from_dir(directory) if (directory / "tokenizer.json").is_file() else None
        self._eos = self.tokenizer.eos_token_ids if self.tokenizer else eos_token_ids(directory)
        self._seeds = random.Random(self.config.seed)
        self._submitted = 0

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Every prompt's output, in the prompts' order. If one prompt is refused, nothing is run."""
        many = _as_list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(many)
        if len(each) != len(many):
            raise ValueError(f"{len(many)} prompts but {len(each)} SamplingParams; give one for all, or one for each")
        requests = [self._request(prompt, p) for prompt, p in zip(many, each, strict=True)]
        try:
            for request in requests:
                self._engine.submit(request)
            while any(r.finish_reason is None for r in requests):
                self._engine.step()
        finally:
            self._cancel(requests)
        return [self._output(r, self._decode(r)) for r in requests]

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """The output so far, each time there is more of it. Closing the iterator cancels the request."""
        request = self._request(prompt, params or SamplingParams())
        self._engine.submit(request)
        return self._follow(request)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """The next turn of one conversation, or of several, by the model's own chat template."""
        several: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self.generate([self._tokens(conversation) for conversation in several], params)

    def _follow(self, request: Request) -> Iterator[RequestOutput]:
        detokenizer = self.tokenizer.detokenizer() if self.tokenizer else None
        text, seen = "", 0
        try:
            while request.finish_reason is None:
                self._engine.step()
                fresh, seen = request.output[seen:], len(request.output)
                if detokenizer:
                    text += "".join(detokenizer.push(token) for token in fresh)
                    text += detokenizer.finish() if request.finish_reason else ""
                if fresh or request.finish_reason:
                    yield self._output(request, text)
        finally:
            self._cancel([request])

    def _cancel(self, requests: list[Request]) -> None:
        """Whatever still runs; and what it held is given back before anyone asks for it."""
        for request in requests:
            self._engine.cancel(request.id)
        while self._engine.has_work and not self._engine.scheduler.num_running + self._engine.scheduler.num_waiting:
            self._engine.step()

    def _request(self, prompt: Prompt | Sequence[Message], params: SamplingParams) -> Request:
        self._submitted += 1
        request_id = f"{self._submitted}"
        try:
            tokens = self._tokens(prompt)
        except ValueError as error:
            raise Rejected(request_id, str(error)) from error
        return Request(
            id=request_id,
            prompt=tuple(tokens),
            params=params,
            seed=self._seeds.getrandbits(63) if params.seed is None else params.seed,
            eos_token_ids=self._eos,
        )

    def _tokens(self, prompt: Prompt | Sequence[Message]) -> Sequence[int]:
        if not isinstance(prompt, str) and all(isinstance(token, int) for token in prompt):
            return [int(token) for token in prompt]  # type: ignore[call-overload]
        if self.tokenizer is None:
            raise ValueError("the model's directory has no tokenizer.json, so prompts must be token ids")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if all(isinstance(message, Mapping) for message in prompt):
            return self.tokenizer.apply_chat(prompt)  # type: ignore[arg-type]
        raise ValueError("a prompt is a string, a list of token ids, or a list of messages {role, content}")

    def _decode(self, request: Request) -> str:
        return self.tokenizer.decode(request.output) if self.tokenizer else ""

    def _output(self, request: Request, text: str) -> RequestOutput:
        return RequestOutput(
            request_id=request.id,
            prompt_token_ids=request.prompt,
            token_ids=tuple(request.output),
            text=text,
            finish_reason=request.finish_reason,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
            metrics=request.metrics,
        )


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _engine_config(options: dict[str, Any]) -> EngineConfig:
    known = EngineConfig.__dataclass_fields__
    for name in options:
        if name not in known:
            raise TypeError(f"LLM has no option {name!r}; the options are {', '.join(known)}")
    return EngineConfig(**options)


def _find(model: str | Path | None) -> Path:
    if model is not None:
        return Path(model).expanduser()
    from .models.demo import demo_model_dir

    return demo_model_dir()
