"""Projections that several layers share, and what one of those layers adds to them of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .batch import Build
from .linear import Linear


class Adapter(nn.Module):
    """up(down(x)), through a narrow vector. `parts`: the sections of what it gives."""

    def __init__(self, build: Build, inputs: int, rank: int, parts: tuple[int, ...]) -> None:
        super().__init__()
        self.down = Linear(build, inputs, rank)
        self.up = Linear(build, rank, sum(parts), split="out", parts=parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class Adapted(nn.Module):
    """A `MergedLinear` with adapters: of each of its parts, or one of all of them together; or none."""

    def __init__(self, shared: nn.Module, adapters: Mapping[str, Adapter]) -> None:
        super().__init__()
        self.shared, self.adapters = shared, nn.ModuleDict(adapters)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        projected: tuple[Tensor, ...] = self.shared(x)
        if not self.adapters:
            return projected
        added = [adapter(x) for adapter in self.adapters.values()]
        if len(added) < len(projected):
            added = list(added[0].split([part.shape[-1] for part in projected], -1))
        return tuple(one + other for one, other in zip(projected, added, strict=True))
