"""The two messages between the columns: a StepPlan down, a StepResult up. Nothing else is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .corruption import Finding
from .ids import Page, Row, Slot
from .request import SamplingParams, TokenLogprob


@dataclass(frozen=True)
class RowStart:
    """A request takes a row. Its tokens, sampling and cursors are written to the device tables, once."""

    row: Row
    generation: int
    tokens: tuple[int, ...]
    own_slot: Slot
    read_slot: Slot
    base: int
    """Position of the checkpoint in read_slot; 0 means the zero state, and read_slot is not read."""
    params: SamplingParams
    seed: int
    prompt_len: int = 0
    """How many of the tokens are the prompt. The rest was sampled before a pre-emption."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that must not be chosen before there are params.min_tokens."""
    scored: int = 0
    """Prompt log-probabilities that are collected already, if params ask for them."""


@dataclass(frozen=True)
class Window:
    """The end of a row's work, where tokens are chosen: after the last one known, and after each draft.

    drafts  so many of the work's tokens, the last of them, are guesses. A draft is accepted if it is the token
            that is chosen in its place, and all drafts before it are
    bonus   the token that is chosen after the last accepted draft, and that no draft foresaw. Without it nothing
            is chosen, and nothing is guessed
    """

    drafts: int = 0
    bonus: bool = True

    @property
    def most_chosen(self) -> int:
        """Tokens that the row gets if every draft is accepted."""
        return self.drafts + self.bonus


NO_CHOICE = Window(bonus=False)
"""Of work that ends before the last token known."""


BONUS = Window()
"""Of work without drafts."""


class RowWork(NamedTuple):
    """Tokens that one row absorbs in this step. Where it stands is the device's to know. Of a row that does the same
    step after step it is always the same object, so that what was made of it need not be made again."""

    row: Row
    generation: int
    tokens: int
    """Drafts included. 0 is legal: the row only folds, and publishes if it holds a grant."""
    window: Window

    @property
    def sample(self) -> bool:
        """The last of these tokens that is no draft is the last one known: choose the next."""
        return self.window.bonus


class PageMap(NamedTuple):
    """Page number `ordinal` of a row's context is stored in `page`."""

    row: Row
    ordinal: int
    page: Page


@dataclass(frozen=True)
class Grant:
    """The fold of `row` that reaches position `line` goes to `slot`, and stays there."""

    row: Row
    generation: int
    slot: Slot
    line: int


@dataclass(frozen=True)
class StepPlan:
    step: int
    starts: tuple[RowStart, ...] = ()
    pages: tuple[PageMap, ...] = ()
    grants: tuple[Grant, ...] = ()
    """At most one outstanding per row, kept on the device until a fold passes its line."""
    exports: tuple[Grant, ...] = ()
    """Further lines of a long run, used in this step or reported missed."""
    work: tuple[RowWork, ...] = ()
    positions: tuple[int, ...] = ()
    """Where the host expects the row of each work to stand, at most. Reservations: they size and check, and address
    nothing."""
    uncertain: tuple[int, ...] = ()
    """Drafts of steps in flight: each row may stand so many tokens before its position."""
    freed_slots: tuple[Slot, ...] = ()
    """Those that nobody holds any more, since the last plan. Some may be handed out again by this one."""
    freed_pages: tuple[Page, ...] = ()
    propose: int = 0
    """So many drafts are made for each row that chooses a token, for later steps to verify. 0: no drafter runs."""

    @property
    def num_tokens(self) -> int:
        return sum(w.tokens for w in self.work)


@dataclass(frozen=True)
class StepResult:
    """Columns, one number of each work; what few rows have is found by row."""

    step: int
    work: tuple[RowWork, ...] = ()
    """All of the plan's, whatever became of the rows."""
    positions: Sequence[int] = ()
    """Tokens absorbed and certain, as the device's cursors have it."""
    bases: Sequence[int] = ()
    """Where its checkpoint stands now; the entries since lead to the position."""
    tokens: Sequence[tuple[int, ...]] = ()
    """Those that were chosen: the accepted drafts, and the bonus."""
    proposed: Sequence[int] = ()
    """How many of the window's drafts a drafter had made; the others could not be accepted."""
    logprobs: Mapping[Row, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    """Of the tokens that were chosen."""
    prompt_logprobs: Mapping[Row, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    """Those that this step added to the ones collected before."""
    failed: frozenset[Row] = frozenset()
    """The form of their answers became too involved to follow."""
    used: tuple[Grant, ...] = ()
    missed: tuple[Grant, ...] = ()
    seconds: float = 0.0
    """What it added to the time of the steps before."""
    host_seconds: float = 0.0
    """What the host took for it, beside the device. 0: they take turns."""
    starved: bool = False
    """The device may have waited for the host."""
    findings: tuple[Finding, ...] = ()
