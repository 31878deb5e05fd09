"""Can this request ever run? If not, say what to change."""

from __future__ import annotations

from ..config import Limits
from ..params import MAX_LISTED
from ..request import Request


def refusal(request: Request, limits: Limits) -> str | None:
    """The reason to reject a request, or None."""
    prompt, longest = request.prompt, limits.max_model_len - 1
    if not prompt:
        return "the prompt is empty; give at least one token"
    if len(prompt) > longest:
        return (
            f"the prompt has {len(prompt)} tokens, and max_model_len={limits.max_model_len} leaves room for "
            f"{longest} beside an answer; shorten the prompt or raise max_model_len"
        )
    if not 0 <= min(prompt) <= max(prompt) < limits.vocab_size:
        place, token = next((n, t) for n, t in enumerate(prompt) if not 0 <= t < limits.vocab_size)
        return (
            f"token {token} at place {place} of the prompt is not one of the {limits.vocab_size} of the "
            "vocabulary; use the tokenizer that belongs to the model"
        )
    return _unusable(request, limits)


def _unusable(request: Request, limits: Limits) -> str | None:
    """What in the parameters does not fit the model."""
    params = request.params
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token in tokens:
            if not 0 <= token < limits.vocab_size:
                return f"{name} names token {token}; the vocabulary has 0 to {limits.vocab_size - 1}"
    if params.min_tokens and (held := len(request.stop_ids)) > MAX_LISTED:
        return f"min_tokens can hold back {MAX_LISTED} tokens, not {held}; name fewer stop_token_ids"
    return None
