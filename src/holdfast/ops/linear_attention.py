"""What the recurrences S_t = decay_t * S_{t-1} + value_t key_t^T share: decays, and heads with one key."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from .places import States

NOTHING = 1e-25
"""A decay to less is to 0. Nobody sees the difference beside numbers of the usual size, and what is left of those is
far from the smallest that processors take in their stride."""


def recall(probes: Tensor, state: States) -> Tensor:
    """probes [N, H, T, K], states [N, H, V, K] -> [N, H, T, V]"""
    if isinstance(state, Tensor):
        return probes @ state.mT
    heads, stored = probes.shape[1], state.stored.flatten(0, 1).mT
    sizes = [heads * (run.stop - run.start) for run in state.runs]
    met = zip(probes.flatten(0, 1).split_with_sizes(sizes), state.runs, sizes, strict=True)
    found = [torch.bmm(each, stored.narrow(0, heads * run.start, size)) for each, run, size in met]
    return torch.cat(found).unflatten(0, (-1, heads))


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """[.., L, H] -> the whole decay [.., 1, H], and each place's since it was written [.., L, H]."""
    found = decay_of(_sums(log_decay))
    return found[..., :1, :], found[..., 1:, :]


def decay_of(log_decay: Tensor) -> Tensor:
    """exp, and 0 where next to nothing is left: with denormal numbers, products take many times as long."""
    return F.threshold(log_decay.exp(), NOTHING, 0.0)


def distances(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """[.., L, H] -> the sum of all [.., 1, H], and for each place that of those after it [.., L, H].

    Only sums of numbers of one sign: a difference of cumulative sums would lose the small ones.
    """
    found = _sums(log_decay)
    return found[..., :1, :], found[..., 1:, :]


def _sums(log_decay: Tensor) -> Tensor:
    return _later(log_decay.shape[-2], log_decay.device) @ log_decay


@cache
def _later(size: int, device: torch.device) -> Tensor:
    """[size + 1, size]: ones for all places, then for those after the first, after the second, ..."""
    with torch.inference_mode(False):
        return torch.ones(size + 1, size, device=device).triu()


def window_decays(log_decay: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Of tokens [N, T, H] that see one another so: each one's decay since the window began [N, H, T, 1], its own
    included, and from token s to t [N, H, t, s], zero where t does not see s."""
    if log_decay.shape[1] == 1:
        return decay_of(log_decay).transpose(1, 2)[..., None], torch.ones(1, 1, device=log_decay.device)
    sees = sees.expand(len(log_decay), -1, -1)[..., None]
    total, between = decays(torch.where(sees, log_decay[:, None], 0.0))
    return total.permute(0, 3, 1, 2), torch.where(sees, between, 0.0).permute(0, 3, 1, 2)


def pairwise_decay(log_decay: Tensor) -> Tensor:
    """[.., L] -> [.., i, j]: exp of the sum over (j, i], zero for j > i."""
    size = log_decay.shape[-1]
    steps = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril(-1)
    sums = torch.where(steps, log_decay[..., None], 0.0).cumsum(-2)
    return torch.where(
        steps | torch.eye(size, dtype=torch.bool, device=log_decay.device), decay_of(sums), 0.0
    )


def per_head(x: Tensor, heads: int, dim: int = 1) -> Tensor:
    """Groups of heads share what `x` holds along `dim`: head j reads j * size // heads."""
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim)
