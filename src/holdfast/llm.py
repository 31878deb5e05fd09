"""The offline interface: prompts in, outputs out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .answer import Answer, make_output, one_for_each_answer
from .config import EngineConfig
from .defaults import advised_params
from .engine import build_engine
from .memory.capacity import CapacityPlan
from .progress import Progress
from .prompts import Message, Prompt, as_conversations, as_prompts, is_conversation, token_ids
from .request import FinishReason, Rejected, Request, RequestOutput, SamplingParams
from .text import Tokenizer, eos_token_ids


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
        self._directory = directory
        self._seeds = random.Random(self.config.seed)
        self._submitted = 0
        self._answers: dict[str, Answer] = {}  # those that someone waits for, by request

    @property
    def capacity(self) -> CapacityPlan:
        """What was given to weights, pools and tables, and how much fits."""
        return self._engine.capacity

    def default_params(self) -> SamplingParams:
        """What the model's generation_config.json advises; used wherever no params are given."""
        return advised_params(self._directory)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Every prompt's output, in the prompts' order. If one prompt is refused, nothing is run.

        progress  draw a bar on stderr; None: if it is a terminal and the run lasts longer than a moment
        """
        many = as_prompts(prompts)
        each = _params_for_each(self.default_params() if params is None else params, len(many))
        asked: list[list[Answer]] = []
        try:
            for place, (prompt, p) in enumerate(zip(many, each, strict=True)):
                with _named(place, len(many)):
                    asked.append(self._submit(prompt, p))
            self._run([answer for answers in asked for answer in answers], progress)
        finally:
            self._cancel([answer for answers in asked for answer in answers])
        return [make_output(answers) for answers in asked]

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """The output so far, each time there is more of it. Closing the iterator cancels the request."""
        [one] = _params_for_each(self.default_params() if params is None else params, 1)
        return self._follow(self._submit(prompt, one, streaming=True))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """The next turn of one conversation, or of several, by the model's own chat template."""
        conversations = as_conversations(messages)
        return self.generate([self._tokens(each) for each in conversations], params, progress=progress)

    def _run(self, answers: list[Answer], show: bool | None) -> None:
        def speed() -> str:
            tokens = sum(answer.length for answer in answers)
            return f"{bar.done}/{len(answers)} answers, {tokens / max(bar.seconds, 1e-9):,.0f} tokens/s"

        waited_for = {answer.request.id for answer in answers}
        with Progress("Generating", len(answers), speed, show=show) as bar:
            while bar.done < len(answers):
                bar.advance(sum(answer.request.id in waited_for for answer in self._step()))

    def _follow(self, answers: list[Answer]) -> Iterator[RequestOutput]:
        shown = 0
        try:
            while True:
                ended = all(answer.finished for answer in answers)
                length = sum(answer.length for answer in answers)
                if ended or length > shown:
                    yield make_output(answers)
                if ended:
                    return
                shown = length
                self._step()
        finally:
            self._cancel(answers)

    def _step(self) -> list[Answer]:
        """One turn of the engine, for whoever waits. Returns the answers that ended with it."""
        changed = [self._answers[r.id] for r in self._engine.step() if r.id in self._answers]
        for answer in changed:
            if answer.advance():
                self._engine.finish(answer.request.id, FinishReason.STOP)
        return [answer for answer in changed if answer.finished]

    def _cancel(self, answers: list[Answer]) -> None:
        """Whatever still runs; and what it held is given back before anyone asks for it."""
        for answer in answers:
            self._engine.cancel(answer.request.id)
            del self._answers[answer.request.id]
        self._engine.settle()

    def _submit(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams, *, streaming: bool = False
    ) -> list[Answer]:
        """As many answers to the prompt as the parameters ask for."""
        requests = one_for_each_answer(self._request(prompt, params))
        for request in requests:
            self._engine.submit(request)
            self._answers[request.id] = Answer(request, self.tokenizer, streaming=streaming)
        return [self._answers[request.id] for request in requests]

    def _request(self, prompt: Prompt | Sequence[Message], params: SamplingParams) -> Request:
        self._submitted += 1
        request_id = f"{self._submitted}"
        try:
            tokens = self._tokens(prompt)
            if params.stop and self.tokenizer is None:
                raise ValueError("the model's directory has no tokenizer.json: use stop_token_ids, not stop")
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
        messages = is_conversation(prompt) and len(prompt) > 0
        if not messages and not isinstance(prompt, str):
            return token_ids(prompt)
        if self.tokenizer is None:
            raise ValueError("the model's directory has no tokenizer.json, so prompts must be token ids")
        return self.tokenizer.apply_chat(prompt) if messages else self.tokenizer.encode(prompt)  # type: ignore[arg-type]


def _params_for_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    each: list[Any] = list(params) if isinstance(params, (list, tuple)) else [params] * count
    for one in each:
        if not isinstance(one, SamplingParams):
            raise TypeError(f"params must be SamplingParams, or a list of them, not {type(one).__name__}")
    if len(each) != count:
        raise ValueError(f"{count} prompts but {len(each)} SamplingParams; give one for all, or one for each")
    return each


@contextmanager
def _named(place: int, count: int) -> Iterator[None]:
    """Of several prompts, say which one was refused."""
    try:
        yield
    except Rejected as refused:
        where = f"prompts[{place}]: " if count > 1 else ""
        raise Rejected(refused.request_id, where + refused.reason) from refused


def _engine_config(options: dict[str, Any]) -> EngineConfig:
    known = EngineConfig.__dataclass_fields__
    for name in options:
        if name not in known:
            raise TypeError(f"LLM has no option {name!r}; the options are {', '.join(known)}")
    return EngineConfig(**options)


def _find(model: str | Path | None) -> Path:
    if isinstance(model, (str, Path)):
        return Path(model).expanduser()
    if model is not None:
        raise TypeError(f"model must be the path of a directory, or None for the demo model, not {model!r}")
    from .models.demo import demo_model_dir

    return demo_model_dir()
