"""Random inputs for a recurrent layer: keys of length one, betas in (0, 1), decays from hardly any to all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .oracle import Shape

FIXED_DECAYS = {"weak": -1e-4, "strong": -20.0, "violent": -300.0}
DECAYS = (*FIXED_DECAYS, "mild", "mixed", "exactly")
"""exactly: numbers whose products and sums float32 holds without rounding, so that bits can be compared"""


@dataclass(frozen=True)
class Draw:
    shape: Shape
    generator: torch.Generator
    decay: str

    def __call__(self, count: int) -> dict[str, Tensor]:
        if self.decay == "exactly":
            return self._dyadic(count)
        s = self.shape
        return {
            "q": self._normal(count, s.key_heads, s.key_dim),
            "k": F.normalize(self._normal(count, s.key_heads, s.key_dim), dim=-1),
            "v": self._normal(count, s.value_heads, s.value_dim),
            "log_g": self._log_decay(count),
            "beta": self._uniform(count, s.value_heads),
            "x": self._normal(count, s.channels),
        }

    def _log_decay(self, count: int) -> Tensor:
        log_g = -0.5 * self._uniform(count, self.shape.value_heads)
        if self.decay in FIXED_DECAYS:
            return torch.full_like(log_g, FIXED_DECAYS[self.decay])
        if self.decay == "mixed":
            kind = self._uniform(count, self.shape.value_heads)
            for least, value in ((0.3, -1e-4), (0.92, -20.0), (0.96, -300.0)):
                log_g = torch.where(kind > least, torch.tensor(value), log_g)
        return log_g

    def _dyadic(self, count: int) -> dict[str, Tensor]:
        """Keys along one axis, small integers, betas of 0, 1/2 and 1, decays of nothing or all."""
        s = self.shape
        along = torch.randint(s.key_dim, (count, s.key_heads), generator=self.generator)
        kind = self._uniform(count, s.value_heads)
        return {
            "q": self._integers(7, count, s.key_heads, s.key_dim),
            "k": F.one_hot(along, s.key_dim).float(),
            "v": self._integers(1000, count, s.value_heads, s.value_dim),
            "log_g": torch.where(self._uniform(count, s.value_heads) > 0.97, -1000.0, 0.0),
            "beta": torch.where(kind > 0.8, 0.0, torch.where(kind > 0.7, 0.5, 1.0)),
            "x": self._integers(1000, count, s.channels),
        }

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator)

    def _integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(-most, most + 1, shape, generator=self.generator).float()
