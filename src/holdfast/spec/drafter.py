"""What every drafter is: it absorbs what the model absorbs, and guesses what the model will choose next.

Its layers keep their state in the model's own pools, under names of their own, so rows, slots, pages, checkpoints,
prefix hits and pre-emption are its as well. What it keeps of a token depends on that token and those before it
alone, so a checkpoint or a page is right for whoever has the same tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.batch import Batch
from ..memory.kv_pool import KVPool
from ..memory.spec import KVSpec, StateSpec
from ..memory.state_pool import StatePool
from ..models.base import declared, recordable
from ..ops.places import ToKeep
from ..ops.step import StateStep, Tree

PREFIX = "draft."
"""Of the names of a drafter's layers in the pools."""
PATIENCE = 128
"""More steps than adaptive depth waits before it tries whether drafts have become worth their while."""


@dataclass(frozen=True)
class Features:
    """What the model made of the tokens of a step.

    hidden  [tokens, hidden]  as its head reads them
    layers  [tokens, layers, hidden]  as each of the layers left them that the drafter reads
    """

    hidden: Tensor
    layers: Tensor


@dataclass(frozen=True)
class VerifiedStep:
    """Lanes that have chosen a token: where they stand now, and the means to look ahead of that.

    here     one token of each of the N lanes, where it stands: the last one chosen, which is not absorbed yet
    tokens   [rows + 1, positions]  of every row, up to and including that one
    longest  no lane's position is beyond this
    depth    so many drafts are asked for, at least 1 and at most the drafter's own depth
    choose   (logits [N, vocab], place) -> [N]: what each lane would choose so many places after its last token,
             with the noise by which the model's own choice will be made; [N, T, vocab] -> [N, T]: at T places
             from that one on
    """

    here: StateStep
    tokens: Tensor
    longest: int
    depth: int
    choose: Callable[[Tensor, int], Tensor]
    state: StatePool
    kv: KVPool

    @property
    def rows(self) -> Tensor:
        """[N]: 0 is padding."""
        return self.here.rows

    @property
    def position(self) -> Tensor:
        """[N]: tokens absorbed and certain."""
        return self.here.position

    @property
    def last(self) -> Tensor:
        """[N]: the tokens that drafts follow."""
        return self.tokens[self.rows, self.position]

    def ahead(self, by: int, tokens: Tensor) -> Batch:
        """One token [N] for each lane, `by` positions ahead of where it stands: uncertain, and overwritten by the
        step that absorbs what will stand there."""
        return self._batch(tokens, self.here.further(by))

    def window(self, tokens: Tensor, tree: Tree | None = None) -> Batch:
        """Several [N, T], from where each lane stands. `tree` says which of them see which."""
        uniform = self.here.uniform
        step = self.state.look_ahead(rows=self.rows, tokens=tokens.shape[1], tree=tree, uniform=uniform)
        return self._batch(tokens.flatten(), step)

    def _batch(self, tokens: Tensor, step: StateStep) -> Batch:
        positions = step.positions_of(len(tokens))
        return Batch(tokens=tokens, positions=positions, step=step, state=self.state, kv=self.kv)


@dataclass(frozen=True)
class Draft:
    """tokens   [N, step.depth]  to follow the last token of each lane
    count    [N]  how many of them were meant; the others are never accepted
    parents  [N, step.depth]  of a tree: the node that each follows, where 0 is the lane's last token; None: a chain
    """

    tokens: Tensor
    count: Tensor
    parents: Tensor | None = None


class Drafter(nn.Module):
    """At most `depth` drafts at a time. One without layers needs `propose` only."""

    branches = False
    """Its drafts are trees."""
    reads: tuple[int, ...] = ()
    """Layers of the model, counted from 0, whose output it wants among the features."""
    patience = 0
    """Tokens of a row that it need not absorb at once, if it may remember them: none."""
    trails = False
    """What it catches up with moves cursors: it does so by runs, from where it stood."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    @property
    def trained(self) -> tuple[nn.Module, ...]:
        """What files fill, each from a directory of its own."""
        return ()

    def check(self) -> None:
        """That what the files filled it with can be used."""

    def state_specs(self) -> dict[str, StateSpec]:
        return declared(self, "state_spec")

    def kv_specs(self) -> dict[str, KVSpec]:
        return declared(self, "kv_spec")

    def absorb(self, batch: Batch, features: Features) -> None:
        """The tokens of a step, after the model: all that a later step may need of them is kept."""

    def remember(self, batch: Batch, features: Features) -> ToKeep | None:
        """Instead of `absorb`: only what `catch_up` will need, for whoever commits the step to keep."""
        raise NotImplementedError

    def catch_up(self, batch: Batch) -> None:
        """Absorb tokens that it remembers."""
        raise NotImplementedError

    @property
    def recordable(self) -> bool:
        """Neither what it absorbs nor what it proposes makes any layer ask the device."""
        return not self.branches and recordable(self)

    @abstractmethod
    def propose(self, step: VerifiedStep) -> Draft:
        """Nothing of the device may be waited for, and no shape may depend on what it holds."""

    def name_layers(self) -> None:
        """So that none is mistaken for one of the model's."""
        layers: list[Any] = [m for m in self.modules() if hasattr(m, "state_spec") or hasattr(m, "kv_spec")]
        for layer in layers:
            layer.name = PREFIX + layer.name


def all_meant(tokens: Tensor) -> Draft:
    """[N, step.depth]: a chain in which every draft was meant."""
    return Draft(tokens, torch.full_like(tokens[:, 0], tokens.shape[1]))
