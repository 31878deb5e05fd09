"""A fault: a small patch of the engine, the scene in which it shows, and what must catch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.config import SpeculativeConfig

QWEN, LFM2, QWEN3, MAMBA2 = "qwen3_5", "lfm2", "qwen3", "mamba2"
"""Gated delta nets with attention; short convolutions with attention; attention alone; state spaces alone."""


@dataclass(frozen=True)
class Ask:
    """A request: a prompt of its own, perhaps after one that others begin with as well."""

    length: int
    answer: int
    shared: int = 0
    after: int = 0
    """Steps of the engine before it arrives."""
    cancelled: int | None = None
    """Steps before it is cancelled."""


MIXED = (Ask(70, 24), Ask(17, 40), Ask(33, 30), Ask(5, 24), Ask(20, 28), Ask(49, 20))
"""More requests than rows: the later ones take over rows, slots and pages."""


@dataclass(frozen=True)
class Scene:
    model: str = QWEN
    asks: tuple[Ask, ...] = MIXED
    options: Mapping[str, Any] = field(default_factory=dict)
    drafts: int = 0
    """Or levels of a tree; every third of them is wrong."""
    depths: tuple[int, ...] = ()
    """Candidates of an adaptive depth, another every step; `drafts` is the initial one."""
    drafter: str = "standalone"
    """A method; or "tree": EAGLE's, with several guesses in every place. A standalone one is the model itself."""

    @property
    def key(self) -> tuple[Any, ...]:
        options = tuple(sorted(self.options.items()))
        return (self.model, self.asks, options, self.drafts, self.depths, self.drafter)


ALONE = Scene(options=dict(enable_prefix_caching=False))
SHORT_CONV = Scene(LFM2, options=dict(enable_prefix_caching=False))
WINDOWS = Scene(
    asks=(Ask(80, 30), Ask(21, 40), Ask(37, 30)),
    options=dict(
        enable_prefix_caching=False,
        speculative_config=SpeculativeConfig("ngram", 4),
        max_num_batched_tokens=5,
    ),
)
"""Prompts come in windows of five tokens, which pass lines in the middle."""

SPECULATING = Scene(asks=(Ask(40, 40), Ask(21, 30), Ask(30, 36)), drafts=4)
"""Of each window some drafts are accepted, and some are not."""

TREES = replace(SPECULATING, drafts=3, drafter="tree")
"""The same with drafts that branch."""

RESTLESS = Scene(asks=(Ask(40, 40), Ask(21, 30), Ask(30, 36)), drafts=1, depths=(0, 1, 7))
"""The same, with a depth that changes every step."""

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    name: str
    published: str
    """Where it was a defect."""
    here: str
    """What the patch does to this engine."""
    caught_by: str
    """stamps, full, or the name of a test"""
    plant: Plant
    scene: Scene = ALONE
    contract: Callable[[], None] | None = None
    """Of a fault that only a test catches: that test."""
    slow: bool = False


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace owner.name by make(owner.name)."""
    patch.setattr(owner, name, make(getattr(owner, name)))


class Spotlight:
    """Which layer runs: for faults of one layer only."""

    def __init__(self, patch: pytest.MonkeyPatch, *kinds: type) -> None:
        self.layer = ""
        for kind in kinds:
            wrap(patch, kind, "forward", self._told)

    def _told(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def told(layer: Any, *args: Any) -> Any:
            self.layer = layer.name
            return forward(layer, *args)

        return told
