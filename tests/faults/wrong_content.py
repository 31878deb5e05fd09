"""The right place, with the wrong bytes: what only recomputation shows, or a test of the operation itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.ops import journal
from holdfast.ops.gated_delta.reference import GatedDelta
from holdfast.ops.places import ConvState, TemporalState

from .contracts import mixed_traffic
from .fault import SHORT_CONV, WINDOWS, Fault, wrap


def _window_one_off(patch: pytest.MonkeyPatch) -> None:
    def older(store: Callable[..., Any]) -> Callable[..., Any]:
        return lambda state, at, values: store(state, at, values.roll(1, -2))

    wrap(patch, ConvState, "store", older)


def _transposed_by_runs(patch: pytest.MonkeyPatch) -> None:
    def swapped(keep: Callable[..., Any]) -> Callable[..., Any]:
        def other(rule: Any, pool: Any, one: Any, walk: Any) -> None:
            right, walk.state = walk.state, walk.state.mT.contiguous()
            keep(rule, pool, one, walk)
            walk.state = right

        return other

    wrap(patch, journal, "_keep", swapped)


def _stale_bytes(patch: pytest.MonkeyPatch) -> None:
    def half(store: Callable[..., Any]) -> Callable[..., Any]:
        def other(state: TemporalState, at: Any, values: Any) -> None:
            values = values.clone()
            values[:, : values.shape[1] // 2] = state.saved[at.slots, : values.shape[1] // 2]
            store(state, at, values)

        return other

    wrap(patch, TemporalState, "store", half)


def _drafts_see_one_state(patch: pytest.MonkeyPatch) -> None:
    wrap(patch, journal, "_chain", lambda chain: lambda *args: torch.eye(args[0], dtype=torch.bool))


def _transposed_by_windows(patch: pytest.MonkeyPatch) -> None:
    uncertain = [False]

    def told(advance: Callable[..., Any]) -> Callable[..., Any]:
        def other(rule: Any, inputs: Any, pool: Any, windows: Any, out: Any) -> None:
            uncertain[0] = windows.step.longest_window > 1
            advance(rule, inputs, pool, windows, out)
            uncertain[0] = False

        return other

    def swapped(store: Callable[..., Any]) -> Callable[..., Any]:
        def other(rule: Any, pool: Any, at: Any, state: Any) -> None:
            store(rule, pool, at, state.mT if uncertain[0] else state)

        return other

    wrap(patch, journal, "_advance_windows", told)
    wrap(patch, journal, "store", swapped)


def _fold_without_decay(patch: pytest.MonkeyPatch) -> None:
    def undecayed(fold: Callable[..., Any]) -> Callable[..., Any]:
        return lambda rule, state, entries: fold(rule, state, entries) + state * 0.1

    wrap(patch, GatedDelta, "fold", undecayed)


FAULTS = (
    Fault(
        "convolution-window-one-off",
        "vLLM #42792",
        "a checkpoint is left with convolution inputs that are one off",
        "full",
        _window_one_off,
        SHORT_CONV,
    ),
    Fault(
        "transposed-between-chunks",
        "SGLang on Ascend",
        "a prompt leaves its state with key and value axes exchanged",
        "full",
        _transposed_by_runs,
    ),
    Fault(
        "transposed-with-drafts",
        "SGLang on Ascend",
        "the same, and only where windows have several tokens",
        "full",
        _transposed_by_windows,
        WINDOWS,
    ),
    Fault(
        "half-a-state-stored",
        "a class of many",
        "some heads of a checkpoint keep the bytes that were there",
        "full",
        _stale_bytes,
    ),
    Fault(
        "drafts-see-one-state",
        "vLLM #42792",
        "every token of a window starts from the state before the window",
        "full",
        _drafts_see_one_state,
        WINDOWS,
    ),
    Fault(
        "wrong-decay",
        "a class of many",
        "a fold decays the old state too little, wherever it happens",
        "tests/memory/test_journal.py",
        _fold_without_decay,
        contract=mixed_traffic,
    ),
)
