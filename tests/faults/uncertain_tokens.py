"""Windows whose tokens may be rejected. No drafter exists yet, so these are shown on the state pool alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.memory.state_pool import StatePool
from holdfast.ops.step import StateStep

from .contracts import mixed_traffic, trees
from .fault import Fault, wrap

POOL = "tests/memory/test_journal.py"


def _accepting(change: Callable[[StateStep, Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def other(commit: Callable[..., Any]) -> Callable[..., Any]:
            return lambda pool, *, step, accepted: commit(pool, step=step, accepted=change(step, accepted))

        wrap(patch, StatePool, "commit", other)

    return plant


def _idle_rows_commit(patch: pytest.MonkeyPatch) -> None:
    def all_rows(commit: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, *, step: StateStep, accepted: Any) -> Any:
            idle = torch.ones_like(pool.cursors.length, dtype=torch.bool)
            idle[step.rows] = False
            pool.cursors.length.add_(idle)
            return commit(pool, step=step, accepted=accepted)

        return other

    wrap(patch, StatePool, "commit", all_rows)


def _one_was_accepted(patch: pytest.MonkeyPatch) -> None:
    last: dict[int, int] = {}

    def believing(begin: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, **given: Any) -> StateStep:
            step = begin(pool, **given)
            position = step.position.clone()
            for lane, row in enumerate(step.rows.tolist()):
                if int(step.counts[lane]) == 1 and row in last:
                    position[lane] = last[row] + 1
                last[row] = int(step.position[lane])
            return replace(step, position=position)

        return other

    wrap(patch, StatePool, "begin", believing)


def _path_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StatePool, "compact", lambda pool, *, step, path, accepted: None)


FAULTS = (
    Fault(
        "idle-row-commits",
        "SGLang #25029",
        "rows that sit a step out move their cursors with it",
        POOL,
        _idle_rows_commit,
        contract=mixed_traffic,
    ),
    Fault(
        "rejected-tokens-kept",
        "vLLM #57128",
        "the state goes on from tokens that were rejected",
        POOL,
        _accepting(lambda step, accepted: step.counts),
        contract=mixed_traffic,
    ),
    Fault(
        "bonus-counted-twice",
        "SGLang #25029",
        "one token more is accepted than was, if there is one",
        POOL,
        _accepting(lambda step, accepted: torch.minimum(accepted + 1, step.counts)),
        contract=mixed_traffic,
    ),
    Fault(
        "zero-drafts-after-many-accepted",
        "SGLang #25029",
        "a step of one token goes on as if the last had accepted one",
        POOL,
        _one_was_accepted,
        contract=mixed_traffic,
    ),
    Fault(
        "path-not-moved",
        "a class of many",
        "the accepted branch of a tree stays where its nodes were",
        "tests/memory/test_trees.py",
        _path_not_moved,
        contract=trees,
    ),
)
