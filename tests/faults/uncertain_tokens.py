"""Windows whose tokens may be rejected: what is accepted, and what must not outlive a rejection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.executor import speculation
from holdfast.executor.runner import Runner
from holdfast.memory.state_pool import StatePool
from holdfast.ops.acceptance import reference as acceptance
from holdfast.ops.step import StateStep

from .contracts import mixed_traffic
from .fault import SPECULATING, Fault, wrap

POOL = "tests/memory/test_journal.py"


def _accepting(change: Callable[[StateStep, Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        def other(commit: Callable[..., Any]) -> Callable[..., Any]:
            return lambda pool, *, step, accepted, **more: commit(
                pool, step=step, accepted=change(step, accepted), **more
            )

        wrap(patch, StatePool, "commit", other)

    return plant


def _idle_rows_commit(patch: pytest.MonkeyPatch) -> None:
    def all_rows(commit: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, *, step: StateStep, accepted: Any, **more: Any) -> Any:
            idle = torch.ones_like(pool.cursors.length, dtype=torch.bool)
            idle[step.rows] = False
            pool.cursors.length.add_(idle)
            return commit(pool, step=step, accepted=accepted, **more)

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


def _accept_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acceptance, "count_accepted", lambda *, drafts, chosen, count: count)


def _host_position(patch: pytest.MonkeyPatch) -> None:
    """The host's count of tokens is that of a row whose drafts are all accepted."""

    def optimistic(make: Callable[..., Any]) -> Callable[..., Any]:
        def other(runner: Runner, lanes: Any) -> Any:
            position = torch.tensor(lanes.positions)
            cursors = runner.state.cursors
            cursors.length[lanes.rows] = position - cursors.base[lanes.rows]
            return make(runner, lanes)

        return other

    wrap(patch, Runner, "_batch", optimistic)


def _drafting_commits(patch: pytest.MonkeyPatch) -> None:
    def moving(propose: Callable[..., Any]) -> Callable[..., Any]:
        def other(speculation: Any, *given: Any) -> Any:
            drafted = propose(speculation, *given)
            if drafted is not None:
                state = drafted.step.state
                ahead = state.look_ahead(rows=drafted.step.rows)
                state.commit(step=ahead, accepted=ahead.counts)
            return drafted

        return other

    wrap(patch, speculation.Speculation, "propose", moving)


def _drafts_over_the_bonus(patch: pytest.MonkeyPatch) -> None:
    def early(propose: Callable[..., Any]) -> Callable[..., Any]:
        def other(speculation: Any, *given: Any) -> Any:
            drafted = propose(speculation, *given)
            if drafted is not None:
                step = drafted.step
                speculation._tables.tokens[step.rows, step.position] = drafted.draft.tokens[:, 0]
            return drafted

        return other

    wrap(patch, speculation.Speculation, "propose", early)


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
        "stamps",
        _accepting(lambda step, accepted: step.counts),
        SPECULATING,
    ),
    Fault(
        "bonus-counted-twice",
        "SGLang #25029",
        "one token more is accepted than was, if there is one",
        "stamps",
        _accepting(lambda step, accepted: torch.minimum(accepted + 1, step.counts)),
        SPECULATING,
    ),
    Fault(
        "drafts-never-compared",
        "a class of many",
        "every draft is accepted, whatever was chosen in its place",
        "stamps",
        _accept_all,
        SPECULATING,
    ),
    Fault(
        "hopes-of-the-host",
        "vLLM #42792",
        "the host's count, in which every draft is accepted, says where a row's state is",
        "stamps",
        _host_position,
        SPECULATING,
    ),
    Fault(
        "drafting-moves-cursors",
        "a class of many",
        "the first token that a drafter looks ahead at counts as absorbed",
        "stamps",
        _drafting_commits,
        SPECULATING,
    ),
    Fault(
        "draft-over-the-bonus",
        "SGLang #25029",
        "drafts begin where the bonus token stands, as if it had not been counted",
        "stamps",
        _drafts_over_the_bonus,
        SPECULATING,
    ),
    Fault(
        "zero-drafts-after-many-accepted",
        "SGLang #25029",
        "a step of one token goes on as if the last had accepted one",
        POOL,
        _one_was_accepted,
        contract=mixed_traffic,
    ),
)
