"""Drafts that branch: nodes see their ancestors, one path of them is accepted, and all that is kept of it moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from holdfast.executor import trees
from holdfast.memory import state_pool
from holdfast.memory.kv_pool import KVPool
from holdfast.memory.state_pool import Moves, StatePool
from holdfast.ops.acceptance.trees import Walk
from holdfast.ops.attention import reference as attention
from holdfast.ops.step import StateStep

from .fault import TREES, Fault, wrap


def _path_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StatePool, "compact", lambda pool, *, step, path, accepted: None)


def _keys_not_moved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVPool, "move", lambda pool, rows, source, target: None)


def _moved_a_step_late(patch: pytest.MonkeyPatch) -> None:
    def late(move: Callable[..., None]) -> Callable[..., None]:
        waiting: dict[int, tuple[Tensor, ...]] = {}

        def other(pool: KVPool, *moves: Tensor) -> None:
            if before := waiting.get(id(pool)):
                move(pool, *before)
            waiting[id(pool)] = moves

        return other

    wrap(patch, KVPool, "move", late)


def moved_one_further(patch: pytest.MonkeyPatch) -> None:
    def further(along: Callable[..., Moves]) -> Callable[..., Moves]:
        def other(*given: Any) -> Moves:
            moves = along(*given)
            return replace(moves, target=moves.target + 1)

        return other

    wrap(patch, state_pool, "moves_along", further)


def _path_of_another_lane(patch: pytest.MonkeyPatch) -> None:
    def exchanged(compact: Callable[..., None]) -> Callable[..., None]:
        return lambda pool, *, step, path, accepted: compact(
            pool, step=step, path=path.roll(1, 0), accepted=accepted
        )

    wrap(patch, StatePool, "compact", exchanged)


def _counts_of_another_lane(patch: pytest.MonkeyPatch) -> None:
    def exchanged(accept: Callable[..., Walk]) -> Callable[..., Walk]:
        def other(drafts: Any, *given: Any) -> Walk:
            walk = accept(drafts, *given)
            right = walk.verified.accepted
            accepted = right.roll(1).minimum(drafts.drafts)
            certain = walk.verified.certain.index_add(0, drafts.lane, accepted - right)
            return replace(walk, verified=replace(walk.verified, accepted=accepted, certain=certain))

        return other

    wrap(patch, trees, "accept_tree", exchanged)


def _siblings_seen(patch: pytest.MonkeyPatch) -> None:
    def blind(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda queries, keys, values, own, scale: attend(queries, keys, values, None, scale)

    wrap(patch, attention, "_attend", blind)


def _turned_by_its_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateStep, "positions_of", lambda step, tokens: step.places_of(tokens)[1])


FAULTS = (
    Fault(
        "path-not-moved",
        "a class of many",
        "the journal of an accepted branch stays where its nodes were",
        "stamps",
        _path_not_moved,
        TREES,
    ),
    Fault(
        "keys-of-the-path-not-moved",
        "a class of many",
        "keys and values of an accepted branch stay where its nodes were",
        "stamps",
        _keys_not_moved,
        TREES,
    ),
    Fault(
        "path-moved-a-step-late",
        "a class of many",
        "keys and values of an accepted branch move when the next step has read them",
        "stamps",
        _moved_a_step_late,
        TREES,
    ),
    Fault(
        "path-one-place-further",
        "SGLang #25029",
        "the journal of an accepted branch moves to places that are counted with the bonus token",
        "stamps",
        moved_one_further,
        TREES,
    ),
    Fault(
        "path-of-another-lane",
        "SGLang #25029",
        "a lane's journal is compacted along the branch that the lane before it accepted",
        "stamps",
        _path_of_another_lane,
        TREES,
    ),
    Fault(
        "accepted-of-another-lane",
        "SGLang #25029",
        "a lane accepts as many drafts as the lane before it",
        "stamps",
        _counts_of_another_lane,
        TREES,
    ),
    Fault(
        "siblings-seen",
        "a class of many",
        "a node attends to nodes that are not above it",
        "full",
        _siblings_seen,
        TREES,
    ),
    Fault(
        "node-turned-by-its-place",
        "a class of many",
        "a node's keys are turned by where it is stored, not by where it stands in its text",
        "full",
        _turned_by_its_place,
        TREES,
    ),
)
