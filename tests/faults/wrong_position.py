"""Cursors and lines: state of the right request, at another position than it is taken for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.executor.speculation import Speculation
from holdfast.layers.delta_net import DeltaNet
from holdfast.memory.state_pool import StatePool
from holdfast.ops import journal
from holdfast.ops.places import Checkpoints, TemporalState
from holdfast.ops.step import StateStep

from .fault import ALONE, WINDOWS, Ask, Fault, Scene, Spotlight, wrap


def _committing(change: Callable[[StatePool, StateStep, Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """commit, but with other counts accepted."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def other(commit: Callable[..., Any]) -> Callable[..., Any]:
            return lambda pool, *, step, accepted, **more: commit(
                pool, step=step, accepted=change(pool, step, accepted), **more
            )

        wrap(patch, StatePool, "commit", other)

    return plant


def _of_the_next_window(pool: StatePool, step: StateStep, accepted: Any) -> Any:
    return torch.cat((accepted[: step.num_windows].roll(1), accepted[step.num_windows :]))


def _read_slot_stays(patch: pytest.MonkeyPatch) -> None:
    def stale(commit: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, *, step: StateStep, accepted: Any, **more: Any) -> Any:
            before = pool.cursors.read_slot.clone()
            result = commit(pool, step=step, accepted=accepted, **more)
            pool.cursors.read_slot.copy_(before)
            return result

        return other

    wrap(patch, StatePool, "commit", stale)


def _beginning(change: Callable[[StatePool, StateStep], StateStep]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def other(begin: Callable[..., Any]) -> Callable[..., Any]:
            return lambda pool, **given: change(pool, begin(pool, **given))

        wrap(patch, StatePool, "begin", other)

    return plant


def _optimistic_base(pool: StatePool, step: StateStep) -> StateStep:
    hoped = (step.position + step.counts) // step.grid * step.grid
    return replace(step, base=torch.where(step.base > 0, torch.maximum(hoped, step.base), 0))


def _folds_on_the_line_only(pool: StatePool, step: StateStep) -> StateStep:
    window = torch.arange(len(step.rows)) < step.num_windows
    passed = window & (step.position - step.base != step.grid)
    return replace(step, end_base=torch.where(passed, step.base, step.end_base))


def _fold_not_stored(patch: pytest.MonkeyPatch) -> None:
    light = Spotlight(patch, DeltaNet)

    def forgotten(store: Callable[..., Any]) -> Callable[..., Any]:
        def other(state: TemporalState, at: Checkpoints, values: Any) -> None:
            if light.layer != "blocks.1":
                store(state, at, values)

        return other

    wrap(patch, TemporalState, "store", forgotten)


def _tail_lost(patch: pytest.MonkeyPatch) -> None:
    def only_longer(append: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: TemporalState, one: StateStep, walk: Any, taken: int) -> None:
            if not 4 <= int(one.position + one.counts - one.end_base) <= 10:
                append(pool, one, walk, taken)

        return other

    wrap(patch, journal, "_append_lane", only_longer)


def _token_a_place_early(patch: pytest.MonkeyPatch) -> None:
    def early(verify: Callable[..., Any]) -> Callable[..., Any]:
        def other(speculation: Speculation, step: StateStep, lanes: Any, chosen: Any) -> Any:
            verified = verify(speculation, step, lanes, chosen)
            rows, table = lanes.choices.drafts.tell, speculation._tables.tokens
            position = (step.position + step.counts)[lanes.choices.drafts.lane]
            table[rows, position], table[rows, position - 1] = table[rows, position - 1], chosen
            return verified

        return other

    wrap(patch, Speculation, "verify", early)


FAULTS = (
    Fault(
        "count-for-step",
        "SGLang #25029",
        "the last accepted step is committed where the count of accepted tokens belongs",
        "stamps",
        _committing(lambda pool, step, accepted: accepted - (accepted > 1).long()),
    ),
    Fault(
        "counts-permuted",
        "SGLang #25029",
        "the accepted counts of two rows are exchanged",
        "stamps",
        _committing(_of_the_next_window),
        WINDOWS,
    ),
    Fault(
        "slot-of-the-step-before",
        "vLLM #42792",
        "the fold is written to one slot and read from another",
        "stamps",
        _read_slot_stays,
    ),
    Fault(
        "optimistic-count",
        "vLLM #42792",
        "the state is picked by tokens that are only hoped for",
        "stamps",
        _beginning(_optimistic_base),
    ),
    Fault(
        "line-passed-mid-window",
        "vLLM #42792",
        "a line that a window passes in its middle is never folded",
        "stamps",
        _beginning(_folds_on_the_line_only),
        WINDOWS,
    ),
    Fault(
        "fold-not-stored",
        "vLLM #42792",
        "one layer does not write the line that the cursors move to",
        "stamps",
        _fold_not_stored,
    ),
    Fault(
        "tail-lost",
        "a class of many",
        "a prompt that ends 4 to 10 tokens past a line leaves no entries for them",
        "stamps",
        _tail_lost,
        Scene(asks=(Ask(70, 30), Ask(22, 30), Ask(33, 30)), options=ALONE.options),
    ),
    Fault(
        "token-a-place-early",
        "a class of many",
        "a chosen token is kept one position before its own",
        "stamps",
        _token_a_place_early,
    ),
)
