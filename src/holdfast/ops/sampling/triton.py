"""The kernels that choose tokens, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from . import kernels
from .reference import SamplingRows

PART = 2048
"""Tokens of the vocabulary that one program chooses from."""
LOOKED_AT = 1024
"""Tokens that a row's one program looks at in one go, where it looks for what to keep."""


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """As the reference's, which sorts: at the edge of top_p and min_p, sums in another order may let in or leave out
    a token whose mass is within rounding of it."""
    count, vocab = logits.shape
    device = logits.device
    out = torch.empty(count, dtype=torch.int64, device=device)
    if not count:
        return out
    parts = triton.cdiv(vocab, PART)
    part_value = torch.empty(count, parts, dtype=torch.float32, device=device)
    part_token = torch.empty(count, parts, dtype=torch.int32, device=device)
    cuts = (part_token, part_token, part_value)  # not read if no row truncates
    if rows.draws and rows.truncates:
        cuts = cut(logits, rows)
    kernels.choose[(parts, count)](
        logits,
        rows.temperature,
        rows.min_p,
        rows.seed,
        rows.position,
        *cuts,
        part_value,
        part_token,
        logits.stride(0),
        V=vocab,
        BLOCK=PART,
        DRAWS=rows.draws,
        TRUNCATES=rows.truncates,
        num_warps=8,
    )
    kernels.pick[(count,)](
        part_value, part_token, out, parts, V=vocab, BP=triton.next_power_of_2(parts), num_warps=1
    )
    return out


def most_likely(logits: Tensor) -> Tensor:
    none = logits[:0, 0]
    return sample(logits, SamplingRows(none, none, none, none, none, none, draws=False, truncates=False))


def cut(logits: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor, Tensor]:
    """[S] each: the lowest key that a row keeps by top_k and top_p, the last token at it, the largest logit."""
    count, vocab = logits.shape
    key = torch.empty(count, dtype=torch.int32, device=logits.device)
    token, best = torch.empty_like(key), torch.empty(count, dtype=torch.float32, device=logits.device)
    kernels.cut[(count,)](
        logits,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        key,
        token,
        best,
        logits.stride(0),
        V=vocab,
        BLOCK=LOOKED_AT,
        num_warps=8,
    )
    return key, token, best
