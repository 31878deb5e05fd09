"""When a request has all its tokens."""

from __future__ import annotations

from ..request import FinishReason, Request


def most_tokens(request: Request, max_model_len: int) -> int:
    """Prompt and output together can never be more. The last of them is sampled, never absorbed."""
    return min(len(request.prompt) + request.params.max_tokens, max_model_len)


def finish_reason(request: Request, max_model_len: int) -> FinishReason | None:
    """Whether the last token collected is the final one."""
    token, params = request.tokens[-1], request.params
    may_stop = len(request.tokens) - len(request.prompt) > params.min_tokens
    if may_stop and token in params.stop_token_ids:
        return FinishReason.STOP
    if may_stop and token in request.eos_token_ids and not params.ignore_eos:
        return FinishReason.STOP
    if len(request.tokens) >= most_tokens(request, max_model_len):
        return FinishReason.LENGTH
    return None
