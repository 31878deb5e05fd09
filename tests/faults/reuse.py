"""Prefixes shared too early, too late, or under the wrong label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.cache.manager import CacheManager
from holdfast.config import SpeculativeConfig
from holdfast.executor.inputs import Lanes
from holdfast.memory.state_pool import Committed, StatePool
from holdfast.ops.step import Export, StateStep
from holdfast.scheduler.sharing import Sharing

from .fault import QWEN3, Ask, Fault, Scene, wrap

IN_WINDOWS = Scene(
    asks=(Ask(90, 10, shared=64), Ask(80, 10, shared=64, after=40), Ask(66, 20, shared=64, after=80)),
    options=dict(speculative_config=SpeculativeConfig("ngram", 4), max_num_batched_tokens=5),
)
EXPORTED = Scene(
    asks=(Ask(140, 10, shared=128), Ask(135, 20, shared=128, after=14), Ask(131, 20, shared=128, after=40))
)
PRESSED = Scene(
    asks=(
        Ask(90, 10, shared=64),
        Ask(80, 10, shared=64, after=14),
        Ask(66, 40, shared=64, after=40),
        Ask(40, 20, after=42),
        Ask(41, 20, after=42),
    )
)
CANCELLED = Scene(
    asks=(
        Ask(90, 10, shared=64),
        Ask(80, 90, shared=64, after=14, cancelled=44),
        Ask(66, 40, shared=64, after=40),
        Ask(40, 20, after=46),
        Ask(41, 20, after=46),
    )
)
TOGETHER = Scene(
    QWEN3, asks=(Ask(160, 20, shared=144), Ask(150, 20, shared=144)), options=dict(max_num_batched_tokens=70)
)


def _published_early(patch: pytest.MonkeyPatch) -> None:
    def early(commit: Callable[..., Any]) -> Callable[..., Any]:
        def other(pool: StatePool, *, step: StateStep, accepted: Any, **more: Any) -> Committed:
            granted = pool.cursors.grant_slot[step.rows] > 0
            result = commit(pool, step=step, accepted=accepted, **more)
            hasty = granted & ~result.used & ~result.missed
            pool.cursors.grant_slot[step.rows[hasty]] = 0
            return replace(result, used=result.used | hasty)

        return other

    wrap(patch, StatePool, "commit", early)


def _exporting(change: Callable[[Export], list[Export]]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        right = Lanes.export_lanes.fget  # type: ignore[attr-defined]
        other = property(lambda lanes: tuple(e for export in right(lanes) for e in change(export)))
        patch.setattr(Lanes, "export_lanes", other)

    return plant


def _offered_when_reserved(patch: pytest.MonkeyPatch) -> None:
    def at_once(take: Callable[..., Any]) -> Callable[..., Any]:
        def other(cache: CacheManager, request: Any, *args: Any) -> Any:
            admission = take(cache, request, *args)
            cache._publish_pages(cache._holdings[admission.row], len(request.tokens))
            return admission

        return other

    wrap(patch, CacheManager, "_take", at_once)
    patch.setattr(Sharing, "awaits", lambda *args: False)


def _checkpoint_not_held(patch: pytest.MonkeyPatch) -> None:
    def let_go(take: Callable[..., Any]) -> Callable[..., Any]:
        def other(cache: CacheManager, request: Any, match: Any, *args: Any) -> Any:
            admission = take(cache, request, match, *args)
            holding = cache._holdings[admission.row]
            if holding.reading:
                node = holding.reading.node
                cache._checkpoints.stop_reading(holding)
                cache._checkpoints.drop(node)
            return admission

        return other

    wrap(patch, CacheManager, "_take", let_go)


def _donor_takes_it_along(patch: pytest.MonkeyPatch) -> None:
    def all_of_it(release: Callable[..., Any]) -> Callable[..., Any]:
        def other(cache: CacheManager, row: Any) -> None:
            path = list(cache._holdings[row].path)
            release(cache, row)
            for holding in cache._holdings.values():
                if holding.reading and holding.reading.node in path:
                    cache._checkpoints.stop_reading(holding)
            for node in path:
                if not node.readers:
                    cache._checkpoints.drop(node)

        return other

    wrap(patch, CacheManager, "release", all_of_it)


FAULTS = (
    Fault(
        "published-before-the-fold",
        "vLLM #56525",
        "a slot is labelled when it is granted, not when it is filled",
        "stamps",
        _published_early,
        IN_WINDOWS,
    ),
    Fault(
        "published-before-the-write",
        "vLLM #56525",
        "a prompt's checkpoint is labelled, but nothing was written to its slot",
        "stamps",
        _exporting(lambda export: []),
        EXPORTED,
    ),
    Fault(
        "label-of-another-line",
        "vLLM #42792",
        "a checkpoint is labelled 64 tokens further than it is",
        "stamps",
        _exporting(lambda export: [replace(export, line=64)]),
        EXPORTED,
    ),
    Fault(
        "hit-before-the-write",
        "vLLM #56524",
        "pages are offered when they are reserved; a request resumes before they are written",
        "stamps",
        _offered_when_reserved,
        TOGETHER,
    ),
    Fault(
        "checkpoint-given-away",
        "vLLM #56524",
        "a checkpoint is freed while a request still reads it",
        "stamps",
        _checkpoint_not_held,
        PRESSED,
    ),
    Fault(
        "donor-cancelled",
        "vLLM #56524",
        "a request that is cancelled takes back the checkpoint that another reads",
        "stamps",
        _donor_takes_it_along,
        CANCELLED,
    ),
)
