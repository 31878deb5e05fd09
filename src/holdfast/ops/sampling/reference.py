"""Choosing tokens, in plain torch. A row's choice depends on its logits, seed and position, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingRows:
    """One value per sampled row. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """[S, vocab] -> [S] token ids: argmax, or a draw by Gumbel noise keyed by (seed, position, token)."""
    greedy = logits.argmax(-1)
    drawn = rows.temperature > 0
    if not bool(drawn.any()):
        return greedy
    scaled = logits.float() / torch.where(drawn, rows.temperature, 1.0)[:, None]
    kept = truncate(scaled, rows.top_k, rows.top_p, rows.min_p)
    return torch.where(drawn, (kept + gumbel(rows.seed, rows.position, logits.shape[-1])).argmax(-1), greedy)


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """-inf for tokens outside the k most likely, the smallest set of mass p, or below min_p of the best."""
    vocab = logits.shape[-1]
    ordered, order = logits.sort(-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device)
    limit = torch.where(top_k > 0, top_k, vocab)[:, None]
    keep = rank < limit
    probability = torch.where(keep, ordered, -torch.inf).softmax(-1)
    mass_before = probability.cumsum(-1) - probability
    keep = keep & ((mass_before < top_p[:, None]) | (top_p[:, None] >= 1.0)) & (probability >= min_p[:, None] * probability[:, :1])
    keep = keep | (rank == 0)
    return torch.where(torch.zeros_like(keep).scatter(-1, order, keep), logits, -torch.inf)


def gumbel(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """[S, vocab] of Gumbel noise: a counter-based draw, so that no neighbour and no order can change it."""
    token = torch.arange(vocab, device=seed.device)
    key = _mix(_mix(seed) ^ position)
    bits = _mix(key[:, None] ^ _mix(token))
    uniform = ((bits >> 11) & ((1 << 53) - 1)).double().add(0.5) * 2.0**-53
    return (-(-uniform.log()).log()).float()


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, on wrapping int64."""
    x = x + -7046029254386353131
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift right: int64's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
