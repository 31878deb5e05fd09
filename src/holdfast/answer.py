"""What a caller sees of a request: an answer whose text a stop string may end, one of several to a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from .corruption import StateCorruption
from .request import Completion, FinishReason, Request, RequestOutput
from .text import StoppingText, Tokenizer


class Answer:
    """A request's. If nobody watches it grow, nor waits for a stop string, its text is made at the end.

    shown  special tokens that are part of the text
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        *,
        streaming: bool = False,
        shown: Sequence[str] = (),
    ) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._text: StoppingText | None = None
        params = request.params
        if tokenizer is not None and (streaming or params.stop or shown):
            self._text = StoppingText(
                tokenizer.detokenizer(shown=shown),
                params.stop,
                include_stop=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

    def advance(self) -> bool:
        """Read what the request has got. True if a stop string just ended it: its engine must be told."""
        text, request = self._text, self.request
        if text is None or text.stop is not None:
            return False
        for token in request.tokens[len(request.prompt) + text.tokens :]:
            if text.push(token):
                return True
        if request.finish_reason is not None:
            text.finish()
        return False

    @property
    def finished(self) -> bool:
        text = self._text
        return self.request.finish_reason is not None or (text is not None and text.stop is not None)

    @property
    def length(self) -> int:
        """Tokens. Whatever came after a stop string was completed is not part of the answer."""
        if self._text is not None and self._text.stop is not None:
            return self._text.tokens
        return len(self.request.tokens) - len(self.request.prompt)

    @property
    def text(self) -> str:
        if self._text is not None:
            return self._text.text
        return self._tokenizer.decode(self.request.output[: self.length]) if self._tokenizer else ""

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.request.finish_reason if self._stop is None else FinishReason.STOP

    @property
    def stop_reason(self) -> str | int | None:
        return self._stop or _stop_token(self.request)

    def completion(self) -> Completion:
        request = self.request
        return Completion(
            token_ids=tuple(request.output[: self.length]),
            text=self.text,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs[: self.length]),
            metrics=request.metrics,
        )

    @property
    def _stop(self) -> str | None:
        return self._text.stop if self._text else None


def make_output(answers: Sequence[Answer]) -> RequestOutput:
    """Of all the answers to one prompt."""
    first = answers[0].request
    return RequestOutput(
        request_id=first.id,
        prompt_token_ids=first.prompt,
        outputs=tuple(answer.completion() for answer in answers),
        prompt_logprobs=None if first.params.prompt_logprobs is None else (None, *first.prompt_logprobs),
    )


def raise_corruption(answers: Sequence[Answer], outputs: tuple[RequestOutput, ...] = ()) -> None:
    """If the state of one of them was found corrupt. Nobody should take what it said for an answer."""
    if errors := [answer.request.error for answer in answers if answer.request.error]:
        raise StateCorruption(
            tuple(id_ for error in errors for id_ in error.request_ids),
            tuple(finding for error in errors for finding in error.findings),
            outputs,
        )


def one_for_each_answer(request: Request) -> list[Request]:
    """The request itself, and one more for each further answer. The prompt is scored once: it is the same."""
    params = replace(request.params, prompt_logprobs=None)
    others = (
        Request(
            id=f"{request.id}.{number}",
            prompt=request.prompt,
            params=params,
            seed=derived_seed(request.seed, number),
            eos_token_ids=request.eos_token_ids,
            priority=request.priority,
        )
        for number in range(1, params.n)
    )
    return [request, *others]


def derived_seed(seed: int, number: int) -> int:
    """Not seed + number: that is the seed that another request may well have."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _stop_token(request: Request) -> int | None:
    last = request.tokens[-1]
    stopped = request.finish_reason is FinishReason.STOP and last in request.params.stop_token_ids
    return last if stopped else None
