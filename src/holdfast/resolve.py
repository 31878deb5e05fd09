"""From options, a model and the memory there is to the limits of everything: decided once, and here."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace

from .config import FOLD_EVERY, SHORTEST, ConfigError, EngineConfig, Limits, ModelFacts, max_window, pages_for
from .units import enough_bytes, format_bytes

UNBOUNDED_LEN = 131_072
"""max_model_len, if neither the model nor the user bounds it: each row's table of tokens takes 1 MiB then."""

TYPICAL_LEN = 2048
"""Memory that is short is divided between slots and pages as requests of this length would use them."""


CHECKPOINTS_PER_ROW = 4
"""For each request that may run at once, so many checkpoints of prefixes are of use, and KV for as many more."""


@dataclass(frozen=True)
class Costs:
    """Bytes, from what the model declares: `memory.sizing` has them."""

    weights: int = 0
    page: int = 0
    slot: int = 0
    fixed: Callable[[Limits], int] = lambda limits: 0
    """All that limits take whatever the pages and slots: weights, journals, tables, activations."""
    steps: Callable[[Limits], str] = lambda limits: ""
    """What of it steps work in, in words."""


FREE = Costs()


def resolve(
    config: EngineConfig, facts: ModelFacts, costs: Costs = FREE, available: int | None = None
) -> Limits:
    """Check the options against the model and divide the memory; say what to change when it does not go.

    available  bytes free on the device; None: as many as anybody asks for
    """
    bound = facts.max_positions or config.max_model_len or UNBOUNDED_LEN
    if (config.max_model_len or 0) > bound:
        raise ConfigError(f"max_model_len={config.max_model_len}: the model has {bound} positions")
    recurrent = facts.recurrent
    frame = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len or bound,
        vocab_size=facts.vocab_size,
        page_size=config.page_size,
        num_pages=config.num_pages or 0,
        num_slots=(config.num_slots or 0) if recurrent else 0,
        fold_every=config.fold_every or (FOLD_EVERY if config.max_drafts else facts.fold_every),
        max_window=max_window(config.max_drafts),
        num_checkpoints=_given_checkpoints(config) if recurrent else 0,
    )
    return _Division(config, frame, costs, available, recurrent=recurrent).limits()


def _given_checkpoints(config: EngineConfig) -> int:
    """What the options say of them; without a number of slots, 0 if they say nothing."""
    if not config.enable_prefix_caching:
        return 0
    slots, wanted = config.num_slots, config.num_checkpoints
    if slots is None:
        return wanted or 0
    if wanted is not None and wanted >= slots:
        raise ConfigError(
            f"num_checkpoints={wanted} of num_slots={slots} leave no slot to run in; raise num_slots"
        )
    return max(0, slots - config.max_num_seqs) if wanted is None else wanted


def most_slots(config: EngineConfig, limits: Limits) -> int:
    """As many as there would be if memory were no object."""
    if config.num_slots is not None or not limits.num_slots:
        return limits.num_slots
    given = config.num_checkpoints
    kept = CHECKPOINTS_PER_ROW * limits.max_num_seqs if given is None else given
    return limits.max_num_seqs + (kept if config.enable_prefix_caching else 0)


class _Division:
    """Slots for the state of as many requests as can run at once, then checkpoints, then pages for all of them.

    `frame` has what the options fix; 0 pages or slots are still to be decided.
    """

    def __init__(
        self, config: EngineConfig, frame: Limits, costs: Costs, available: int | None, *, recurrent: bool
    ) -> None:
        self.config, self.frame, self.costs = config, frame, costs
        self.decide_slots = recurrent and not frame.num_slots
        self.page, self.slot = 0 if frame.num_pages else costs.page, costs.slot if self.decide_slots else 0
        self._typical = min(TYPICAL_LEN, frame.max_model_len)
        self._kept = CHECKPOINTS_PER_ROW * frame.max_num_seqs if config.enable_prefix_caching else 0
        self.budget = self._budget(available)

    def limits(self) -> Limits:
        running = self._slots() if self.decide_slots else 0
        checkpoints = self._checkpoints(running) if self.decide_slots else 0
        slots = running + checkpoints
        length = self.frame.max_model_len if self.config.max_model_len else self._longest(slots)
        if not self._fits(length, slots):
            raise ConfigError(self._refusal(length))
        # one more, so that the last is admitted
        useful = (self.frame.max_num_seqs + self._kept) * self._pages(length) + 1
        pages = self.frame.num_pages or _share(self._rest(length) - slots * self.slot, self.page, useful)
        kept = self.frame.num_checkpoints + checkpoints
        given = self.frame.num_slots or self.frame.num_checkpoints
        return replace(
            self.frame,
            max_model_len=length,
            num_pages=pages,
            num_slots=given + slots,
            num_checkpoints=kept,
        )

    def _checkpoints(self, running: int) -> int:
        """If nobody said how many: a quarter of what these slots and one request leave."""
        if self.config.num_checkpoints is not None:
            return 0
        length = self.config.max_model_len or self._typical
        left = self._rest(length) - running * self.slot - self._pages(length) * self.page
        return _share(max(0, left) // 4, self.slot, self._kept)

    def _budget(self, available: int | None) -> int:
        if self.config.memory_bytes is not None:
            return self.config.memory_bytes
        if available is None:
            return 1 << 62
        most = available * 9 // 10
        if self.config.device != "cpu":
            return most
        one_request = self._needed(self.config.max_model_len or self._typical)
        return min(most, one_request + max(0, available - one_request) // 4)

    def _slots(self) -> int:
        rows, typical = self.frame.max_num_seqs, self._typical
        slots = _share(self._rest(typical), self.slot + self._pages(typical) * self.page, rows)
        if length := self.config.max_model_len:
            slots = min(slots, _share(self._rest(length) - self._pages(length) * self.page, self.slot, rows))
        return max(1, slots)

    def _longest(self, slots: int) -> int:
        lengths = range(SHORTEST, self.frame.max_model_len + 1)
        too_long = bisect.bisect_left(lengths, True, key=lambda length: not self._fits(length, slots))
        return lengths[max(0, too_long - 1)]

    def _fits(self, length: int, slots: int) -> bool:
        """Is there room for one request of this length?"""
        enough_pages = not self.frame.num_pages or self.frame.num_pages >= self._pages(length)
        return enough_pages and slots * self.slot + self._pages(length) * self.page <= self._rest(length)

    def _rest(self, length: int) -> int:
        return self.budget - self._fixed(length)

    def _fixed(self, length: int) -> int:
        slots = self.frame.num_slots or self.frame.num_checkpoints
        given = self.frame.num_pages * self.costs.page + slots * self.costs.slot
        return self.costs.fixed(replace(self.frame, max_model_len=length)) + given

    def _pages(self, length: int) -> int:
        return pages_for(length + self.frame.max_window, self.frame.page_size)

    def _needed(self, length: int) -> int:
        return self._fixed(length) + self._pages(length) * self.page + self.slot

    def _refusal(self, length: int) -> str:
        frame, needed, weights = self.frame, self._needed(length), self.costs.weights
        request = f"one request of {'max_model_len=' if self.config.max_model_len else ''}{length} tokens"
        if frame.num_pages and frame.num_pages < self._pages(length):
            return (
                f"num_pages={frame.num_pages} cannot hold {request}, which takes {self._pages(length)} pages "
                f"of {frame.page_size}; raise num_pages or lower max_model_len"
            )
        slots = 1 if self.decide_slots else frame.num_slots
        shorter = self._longest(slots)
        or_shorter = f", or lower max_model_len to {shorter}" if self._fits(shorter, slots) else ""
        memory = self.config.memory
        given = "nine tenths of what is free" if memory is None else f"memory={memory!r}"
        pools = "num_pages, num_slots, " if frame.num_pages or frame.num_slots else ""
        return (
            f"{request} needs {format_bytes(needed)}: weights take {format_bytes(weights)}; {pools}"
            f"max_num_seqs={frame.max_num_seqs} and max_num_batched_tokens={frame.max_num_batched_tokens} "
            f"{format_bytes(self._fixed(length) - weights)}{self.costs.steps(frame)}; its own KV and state the rest. "
            f"There are only {format_bytes(self.budget)}, {given}: give memory='{enough_bytes(needed)}'{or_shorter}, "
            "or lower max_num_seqs or max_num_batched_tokens, or take a smaller dtype"
        )


def _share(total: int, each: int, most: int) -> int:
    """How many of `each` bytes go into `total`, if `most` are of use."""
    return min(most, total // each) if each else most
