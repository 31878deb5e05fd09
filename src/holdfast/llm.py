"""The offline interface: prompts in, outputs out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .answer import Answer, make_output, raise_corruption
from .cache import CacheStats
from .memory.capacity import CapacityPlan
from .progress import Progress
from .prompts import Message, Prompt, as_conversations, as_prompts
from .request import ConstraintStats, Rejected, RequestOutput, SamplingParams, SpeculationStats
from .service import Service


class LLM:
    """A model and the engine that serves it.

    model    a directory with config.json, *.safetensors and, for text, tokenizer.json; or the name of a model
             that the hub's client has downloaded; None: holdfast-small, which comes with Holdfast
    options  any field of EngineConfig: device, dtype, state_dtype, max_num_seqs, page_size, ...
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        self._service = Service(model, options)
        self._engine = self._service.engine
        self.config = self._service.config
        self.tokenizer = self._service.intake.tokenizer

    @property
    def capacity(self) -> CapacityPlan:
        """What was given to weights, pools and tables, and how much fits."""
        return self._service.capacity

    def cache_stats(self) -> CacheStats:
        """What prefix reuse did so far, and what it holds."""
        return self._service.engine.scheduler.cache_stats()

    def speculation_stats(self) -> SpeculationStats:
        """Drafts so far, how many of them were accepted, how many a row is given now, and why so many. Of one
        answer, its `metrics.speculation` tells."""
        return self._service.engine.scheduler.speculation_stats()

    def constraint_stats(self) -> ConstraintStats:
        """Masks that were made for structured answers so far, and how long that took."""
        return self._service.engine.constraint_stats

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes. Requests that run keep what they have; none will resume from it."""
        self._service.engine.scheduler.reset_cache()

    def default_params(self) -> SamplingParams:
        """What the model's generation_config.json advises; used wherever no params are given."""
        return self._service.intake.default_params()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Every prompt's output, in the prompts' order. If one prompt is refused, nothing is run.

        With a sanitizer, StateCorruption is raised when all is done, and has the outputs of the others.

        params    for all prompts, or one for each; None: `default_params()`
        progress  draw a bar on stderr; None: if it is a terminal and the run lasts longer than a moment
        """
        many = as_prompts(prompts)
        each = _params_for_each(self.default_params() if params is None else params, len(many))
        asked: list[list[Answer]] = []
        try:
            for place, (prompt, p) in enumerate(zip(many, each, strict=True)):
                with _named(place, len(many)):
                    asked.append(self._service.submit(prompt, p))
            self._run([answer for answers in asked for answer in answers], progress)
        finally:
            self._service.let_go([answer for answers in asked for answer in answers])
        return _outputs(asked)

    def stream(
        self, prompt: Prompt | Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """The output so far, each time there is more of it. Closing the iterator cancels the request."""
        [one] = _params_for_each(self.default_params() if params is None else params, 1)
        following = self._follow(self._service.submit(prompt, one, streaming=True))
        next(following)  # a generator that was never begun would not cancel when it is closed
        return following

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """The next turn of one conversation, or of several, by the model's own chat template."""
        conversations = as_conversations(messages)
        return self.generate(
            [self._service.intake.tokens(each) for each in conversations], params, progress=progress
        )

    def _run(self, answers: list[Answer], show: bool | None) -> None:
        def speed() -> str:
            tokens = sum(answer.length for answer in answers)
            return f"{bar.done}/{len(answers)} answers, {tokens / max(bar.seconds, 1e-9):,.0f} tokens/s"

        waited_for = {answer.request.id for answer in answers}
        with Progress("Generating", len(answers), speed, show=show) as bar:
            while bar.done < len(answers):
                ended = [answer for answer in self._service.step() if answer.finished]
                bar.advance(sum(answer.request.id in waited_for for answer in ended))

    def _follow(self, answers: list[Answer]) -> Generator[RequestOutput, None, None]:
        shown = 0
        try:
            yield make_output(answers)  # taken by `stream`
            while True:
                ended = all(answer.finished for answer in answers)
                length = sum(answer.length for answer in answers)
                if ended or length > shown:
                    yield make_output(answers)
                if ended:
                    raise_corruption(answers)
                    return
                shown = length
                self._service.step()
        finally:
            self._service.let_go(answers)


def _outputs(asked: list[list[Answer]]) -> list[RequestOutput]:
    outputs = [make_output(answers) for answers in asked]
    raise_corruption([answer for answers in asked for answer in answers], tuple(outputs))
    return outputs


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
