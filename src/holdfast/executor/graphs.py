"""Device work that was recorded once and is launched as a whole.

A recording reads and writes the very tensors that it was made with, so whoever is recorded must keep its inputs in
place, and what it gives is overwritten by the next replay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    graph: torch.cuda.CUDAGraph
    result: Any


class Rehearsal:
    """As `Graphs`, but all is done once, and then over."""

    def __init__(self) -> None:
        self._done: dict[Hashable, Any] = {}

    def record(self, key: Hashable, work: Callable[[], object]) -> None:
        self._done[key] = work()

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        result: T = self._done[key]
        return result


class Graphs:
    def __init__(self) -> None:
        self._recorded: dict[Hashable, Recording] = {}

    def __len__(self) -> int:
        return len(self._recorded)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._recorded

    def record(self, key: Hashable, work: Callable[[], object]) -> None:
        """`work` is done once before, so that kernels are compiled and libraries have their workspaces: it must be
        such that it changes nothing."""
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        shared = next((r.graph.pool() for r in self._recorded.values()), None)
        with torch.cuda.graph(graph, pool=shared):
            result = work()
        graph.replay()  # the first one takes longer
        self._recorded[key] = Recording(graph, result)

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Replayed if it was recorded under this key, otherwise done now."""
        recording = self._recorded.get(key)
        if recording is None:
            return work()
        recording.graph.replay()
        return recording.result
