"""State of another slot, layer or row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.config import Limits
from holdfast.layers.attention import Attention
from holdfast.layers.delta_net import DeltaNet
from holdfast.memory.state_pool import StatePool
from holdfast.ops import journal
from holdfast.ops.places import Checkpoints, ConvState, TemporalState

from .fault import ALONE, LFM2, SHORT_CONV, WINDOWS, Ask, Fault, Scene, Spotlight, wrap

SHARING = (Ask(64, 24, shared=64), Ask(90, 24, shared=64, after=26), Ask(66, 24, shared=64, after=28))


def row_as_slot(patch: pytest.MonkeyPatch) -> None:
    def use_rows(access: Callable[..., Any]) -> Callable[..., Any]:
        return lambda state, at, *values: access(state, replace(at, slots=at.rows), *values)

    for name in ("load", "store"):
        wrap(patch, ConvState, name, use_rows)


def neighbours_slot(patch: pytest.MonkeyPatch) -> None:
    light = Spotlight(patch, DeltaNet)

    def rolled(load: Callable[..., Any]) -> Callable[..., Any]:
        def other(state: TemporalState, at: Checkpoints) -> Any:
            return load(state, replace(at, slots=at.slots.roll(1)) if light.layer == "blocks.1" else at)

        return other

    wrap(patch, TemporalState, "load", rolled)


def next_lanes_slots(patch: pytest.MonkeyPatch) -> None:
    """No request that runs alone would notice."""

    def rolled(begin: Callable[..., Any]) -> Callable[..., Any]:
        def mixed_up(pool: StatePool, **given: Any) -> Any:
            step = begin(pool, **given)
            return replace(step, read_slot=step.read_slot.roll(1))

        return mixed_up

    wrap(patch, StatePool, "begin", rolled)


def _misrouted(kind: type, layer: str, other: str) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def elsewhere(forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(self: Any, *args: Any) -> Any:
                name = self.name
                self.name = other if name == layer else name
                try:
                    return forward(self, *args)
                finally:
                    self.name = name

            return run

        wrap(patch, kind, "forward", elsewhere)

    return plant


def overflowing_offset(patch: pytest.MonkeyPatch) -> None:
    def narrow(access: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(state: TemporalState, at: Checkpoints, *values: Any) -> Any:
            stride = state.saved.stride(0)
            offset = at.slots * stride % (3 * stride)  # as if a word held no more
            return access(state, replace(at, slots=offset // stride), *values)

        return wrapped

    wrap(patch, TemporalState, "load", narrow)


def stride_of_this_step(patch: pytest.MonkeyPatch) -> None:
    def of_step(of: Callable[..., Any]) -> Any:
        def plan(pool: TemporalState, windows: Any) -> Any:
            capacity = windows.step.grid - 1 + 2 * windows.step.longest_window
            return of(SimpleNamespace(capacity=capacity), windows)

        return staticmethod(plan)

    wrap(patch, journal._WindowPlan, "of", of_step)


def ring_of_the_first_depth(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Limits, "journal_capacity", property(lambda limits: limits.fold_every + 1))


FAULTS = (
    Fault(
        "row-as-slot",
        "SGLang, LFM2 and LFM2-MoE",
        "the request's row is used as the index of its state",
        "stamps",
        row_as_slot,
        Scene(LFM2, SHARING),
    ),
    Fault(
        "neighbours-slot",
        "a class of many",
        "one layer reads the checkpoint of the next lane",
        "stamps",
        neighbours_slot,
    ),
    Fault(
        "next-lanes-slots",
        "a class of many",
        "every lane reads the checkpoints of the next",
        "stamps",
        next_lanes_slots,
    ),
    Fault(
        "layers-mis-routed",
        "SGLang #23331",
        "a recurrent layer is given the state of another",
        "stamps",
        _misrouted(DeltaNet, "blocks.1", "blocks.0"),
    ),
    Fault(
        "state-by-number",
        "vLLM #42792",
        "an attention layer takes the cache of the one before it",
        "stamps",
        _misrouted(Attention, "blocks.3", "blocks.1"),
        SHORT_CONV,
    ),
    Fault(
        "offset-overflows",
        "a class of many",
        "slot times stride wraps around at the word's end",
        "stamps",
        overflowing_offset,
        ALONE,
    ),
    Fault(
        "stride-of-this-step",
        "SGLang #23331",
        "the stride of a journal comes from the step's length, not from the allocation",
        "stamps",
        stride_of_this_step,
        WINDOWS,
    ),
    Fault(
        "ring-of-the-first-depth",
        "SGLang #23331",
        "journals are sized for one token a step, windows are longer",
        "stamps",
        ring_of_the_first_depth,
        WINDOWS,
    ),
)
