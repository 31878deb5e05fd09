"""A driver that keeps what the operations gave, and can be told which tokens to send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from holdfast.ops.step import StateStep

from .driver import Driver, Work


class Recorder(Driver):
    stream: dict[str, Tensor] | None = None
    """Tokens by position, the same for every row, instead of random ones."""
    outputs: list[tuple[Tensor, Tensor]]
    """Of the recurrence and of the convolution, step by step."""

    def inputs(self, work: Sequence[Work]) -> dict[str, Tensor]:
        if self.stream is None:
            return super().inputs(work)
        spans = [(self.tenants[w.row].history.position, w.count) for w in work]
        return {name: torch.cat([x[at : at + n] for at, n in spans]) for name, x in self.stream.items()}

    def run_ops(self, inputs: dict[str, Tensor], step: StateStep) -> tuple[Tensor, Tensor]:
        results = super().run_ops(inputs, step)
        self.outputs.append(results)
        return results

    def absorb(self, row: int, sizes: Iterable[int], idle: Sequence[int] = ()) -> list[Tensor]:
        """Everything accepted, with `idle` rows in each step: the outputs of both operations, joined."""
        self.outputs = []
        for count in sizes:
            self.step([*(Work(other, 0) for other in idle), Work(row, count, count)])
        return [torch.cat(parts) for parts in zip(*self.outputs, strict=True)]
