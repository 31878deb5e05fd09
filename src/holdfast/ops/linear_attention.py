"""What the recurrences S_t = decay_t * S_{t-1} + value_t key_t^T share: decays, and heads with one key."""

from __future__ import annotations

import torch
from torch import Tensor


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """[.., L, H] -> the whole decay [.., H], and each place's decay since it was written [.., L, H], as logs.

    Only sums of numbers of one sign: a difference of cumulative sums would lose the small ones.
    """
    after = log_decay.flip(-2).cumsum(-2).flip(-2)  # from each place to the end, itself included
    return after[..., 0, :], torch.cat((after[..., 1:, :], torch.zeros_like(after[..., :1, :])), -2)


def pairwise_decay(log_decay: Tensor) -> Tensor:
    """[.., L] -> [.., i, j]: exp of the sum over (j, i], zero for j > i."""
    size = log_decay.shape[-1]
    steps = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril(-1)
    sums = torch.where(steps, log_decay[..., None], 0.0).cumsum(-2)
    return torch.where(steps | torch.eye(size, dtype=torch.bool, device=log_decay.device), sums.exp(), 0.0)


def per_head(x: Tensor, heads: int, dim: int = 1) -> Tensor:
    """Groups of heads share what `x` holds along `dim`: head j reads j * size // heads."""
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim)
