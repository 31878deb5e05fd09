"""What steps take of a device: found out once at start, with pools of one page and one slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ..config import Limits
from ..memory.sizing import StepBytes
from .runner import Runner

SEGMENTS = (2 + 20) << 20
"""Torch takes so much at once for small tensors, and for larger ones: of the last of each little may be used."""


class Memory(Protocol):
    """As `memory.gpu.GpuMemory`."""

    def settle(self) -> int: ...
    @property
    def allocated(self) -> int: ...
    @property
    def peak(self) -> int: ...


def smallest_pools(limits: Limits) -> Limits:
    """In which the largest steps can be done all the same."""
    return replace(limits, num_pages=1, num_slots=min(1, limits.num_slots), num_checkpoints=0)


def profile(runner: Runner, memory: Memory, *, records: bool) -> StepBytes:
    """By doing the largest steps, and the recordings for the most lanes. Those for fewer lanes will work in the same
    memory, and keep less in proportion."""
    stays = memory.allocated
    runner.compile_ahead()
    memory.settle()
    runner.exert()
    activations = max(0, memory.peak - stays)
    if not records:
        return StepBytes(activations, 0)
    before, held = memory.settle(), memory.allocated
    lanes = {shape.lanes for shape in runner.shapes}
    runner.record([shape for shape in runner.shapes if shape.lanes == max(lanes)])
    taken, kept = memory.settle() - before, memory.allocated - held
    others = sum(lanes) - max(lanes)
    return StepBytes(activations, taken + kept * others // max(lanes) + SEGMENTS)
