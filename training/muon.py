"""Muon for matrices, Adam for the embedding and everything small, as one optimizer.

Muon steps along the nearest orthogonal matrix to the momentum: in short runs it is well ahead of Adam alone.
Matrices of one shape are stepped together, so that few kernels are launched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rates:
    muon: float = 0.02
    adam: float = 3e-3
    decay: float = 0.1
    """Of a matrix, for each unit of Muon's rate."""


MOMENTUM, ADAM_BETAS, EPS = 0.95, (0.9, 0.95), 1e-10


class Optimizer:
    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], rates: Rates) -> None:
        self.rates, self.steps = rates, 0
        named = [(name, it) for name, it in parameters if it.requires_grad]
        self.names = [name for name, _ in named]
        by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        self.small: list[nn.Parameter] = []
        for name, it in named:
            matrix = it.dim() == 2 and min(it.shape) >= 16 and "embed" not in name and "lm_head" not in name
            by_shape[it.shape].append(it) if matrix else self.small.append(it)
        self.matrices = list(by_shape.values())
        self.parameters = dict(named)
        self.first = {name: torch.zeros_like(it) for name, it in named}
        self.second = {name: torch.zeros_like(it) for name, it in named if any(it is s for s in self.small)}
        self._name = {id(it): name for name, it in named}

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """scale: of the rates, from 0 to 1"""
        self.steps += 1
        for group in self.matrices:
            self._step_matrices(group, scale * self.rates.muon)
        self._step_small(scale * self.rates.adam)
        for it in self.parameters.values():
            it.grad = None

    def _step_matrices(self, group: list[nn.Parameter], rate: float) -> None:
        grads = [it.grad for it in group]
        momenta = [self.first[self._name[id(it)]] for it in group]
        torch._foreach_lerp_(momenta, grads, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(grads, momenta, MOMENTUM)
        rows, columns = group[0].shape
        updates = orthogonal(torch.stack(ahead)).to(group[0].dtype).unbind()
        torch._foreach_mul_(group, 1 - rate * self.rates.decay)
        torch._foreach_add_(group, updates, alpha=-rate * max(1.0, rows / columns) ** 0.5)

    def _step_small(self, rate: float) -> None:
        names = [self._name[id(it)] for it in self.small]
        first, second = ([held[name] for name in names] for held in (self.first, self.second))
        grads, (beta1, beta2) = [it.grad for it in self.small], ADAM_BETAS
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        size = torch._foreach_div(second, 1 - beta2**self.steps)
        torch._foreach_sqrt_(size)
        torch._foreach_add_(size, EPS)
        torch._foreach_addcdiv_(self.small, first, size, -rate / (1 - beta1**self.steps))


def orthogonal(x: Tensor, iterations: int = 5) -> Tensor:
    """The nearest orthogonal matrix of each [n, rows, columns], roughly: a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = x.mT if x.shape[-2] > x.shape[-1] else x
    y = wide.bfloat16() if x.is_cuda else wide
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.mT if x.shape[-2] > x.shape[-1] else y
