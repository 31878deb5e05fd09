"""The one owner of rows, slots and pages.

Whatever a step in flight may still read or write stays where it is: the manager is told of every step when it
is launched and when it is collected, and what a row gives up in between comes back with its last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..config import Limits, pages_for
from ..ids import PAD_SLOT, Page, Row, Slot
from ..plan import Grant, PageMap, RowResult, StepResult
from ..request import Request
from .audit import Audit, take_census
from .free_list import FreeList, OwnershipError
from .holding import Holding
from .pages import Pages
from .prefix import COLD, Chain, Match, PrefixIndex
from .slots import Slots


@dataclass(frozen=True)
class Admission:
    """A row, and all it needs to absorb the tokens known when it was admitted."""

    row: Row
    generation: int
    own_slot: Slot
    match: Match
    pages: tuple[PageMap, ...]


@dataclass
class CacheCounters:
    granted: int = 0
    skipped: int = 0
    """Checkpoints that were wanted, but no slot was free."""
    missed: int = 0
    published: int = 0
    evicted_pages: int = 0
    evicted_checkpoints: int = 0


class CacheManager:
    def __init__(self, limits: Limits, *, prefix_reuse: bool = False) -> None:
        self.counters = CacheCounters()
        self._limits = limits
        self._recurrent = limits.num_slots > 0
        self._prefix_reuse = prefix_reuse
        self._rows = FreeList(Row, limits.max_num_seqs)
        self._generations = [0] * (limits.max_num_seqs + 1)
        self._slots = Slots(limits.num_slots)
        self._pages = Pages(limits.num_pages)
        self._index = PrefixIndex(limits.page_size, recurrent=self._recurrent)
        self._holdings: dict[Row, Holding] = {}
        self._waiting: dict[int, list[Holding]] = {}  # by the step that they wait for
        self._launched = 0
        self._collected = 0

    # --- requests come, grow and go ---

    def match(self, tokens: Sequence[int]) -> Match:
        """Where a request with these tokens could resume. The last one is always computed, for its logits."""
        return self._index.match(tokens, limit=len(tokens) - 1)

    def admit(self, request: Request, *, headroom: int = 0) -> Admission | None:
        """A row with room for every token the request has; None, and nothing changed, if it does not fit.

        `headroom` more pages must be available. They are not taken.
        """
        if not self._rows:
            return None
        wanted = pages_for(len(request.tokens), self._limits.page_size)
        resume = self._prefix_reuse and not request.owes_prompt_logprobs
        found = self.match(request.tokens) if resume else COLD
        # A checkpoint to resume from must not be the reason that there is no slot to run in.
        for match in (found, COLD):
            if self._fits(match, wanted + headroom):
                return self._take(request, match, wanted)
        return None

    def extend(self, row: Row, length: int) -> tuple[PageMap, ...] | None:
        """The pages still missing for `length` tokens; None, and nothing changed, if there are not enough."""
        holding = self._holdings[row]
        missing = pages_for(length, self._limits.page_size) - len(holding.pages)
        if missing > self._pages.available:
            return None
        first = len(holding.pages)
        holding.pages += [self._take_page() for _ in range(missing)]
        return _page_maps(holding, first)

    def grant(self, row: Row, line: int) -> Grant | None:
        """A slot for the row's fold at `line`; None if there is none, or an earlier grant is outstanding."""
        if line < 1 or line % self._limits.page_size:
            raise ValueError(f"line {line} is not a page boundary, so no KV could go with its checkpoint")
        holding = self._holdings[row]
        if not self._recurrent or holding.grant is not None:
            return None
        if not self._slots.available:
            self.counters.skipped += 1
            return None
        self._make_slot_free()
        holding.grant = Grant(row, holding.generation, self._slots.take_grant(row), line)
        self.counters.granted += 1
        return holding.grant

    def release(self, row: Row) -> None:
        """Take back all that the row holds, once no step in flight has it."""
        holding = self._holdings.pop(row)
        if holding.last_step > self._collected:
            self._waiting.setdefault(holding.last_step, []).append(holding)
        else:
            self._give_back(holding)

    # --- steps are launched and collected ---

    def launched(self, step: int, rows: Iterable[Row]) -> None:
        self._launched = step
        for row in rows:
            self._holdings[row].last_step = step

    def commit(self, result: StepResult) -> None:
        """Label what the step published, and let go of what it was the last to read."""
        for grant in result.used:
            if holding := self._running(grant.row, grant.generation):
                self._publish(holding, self._settle(holding, grant))
        for grant in result.missed:
            if holding := self._running(grant.row, grant.generation):
                self._slots.release_grant(self._settle(holding, grant).slot, holding.row)
                self.counters.missed += 1
        for row_result in result.rows:
            if holding := self._running(row_result.row, row_result.generation):
                self._advance(holding, row_result)

    def collected(self, step: int) -> None:
        """Steps are collected in the order in which they were launched."""
        self._collected = step
        for holding in self._waiting.pop(step, ()):
            self._give_back(holding)

    def in_flight(self, row: Row) -> bool:
        return self._holdings[row].last_step > self._collected

    @property
    def any_in_flight(self) -> bool:
        return self._launched > self._collected

    @property
    def returning(self) -> bool:
        """Something released will come back when a step in flight is collected."""
        return bool(self._waiting)

    # --- is every id where it should be? ---

    def check(self) -> Audit:
        running, waiting = list(self._holdings.values()), list(self._all_waiting())
        taken = {Row(n): 1 for n in range(1, self._rows.total + 1) if n not in self._rows}
        return Audit(
            rows=take_census(self._rows, taken, (h.row for h in running), (h.row for h in waiting)),
            slots=take_census(
                self._slots.free,
                self._slots.counts(),
                (slot for h in running for slot in h.slots()),
                (slot for h in waiting for slot in h.slots()),
                self._slots.idle_ids(),
            ),
            pages=take_census(
                self._pages.free,
                self._pages.counts,
                (page for h in running for page in h.pages),
                (page for h in waiting for page in h.pages),
                self._pages.idle_ids(),
            ),
        )

    # --- taking ---

    def _fits(self, match: Match, wanted: int) -> bool:
        pages = self._pages.available - sum(map(self._pages.is_idle, match.pages))
        slots = self._slots.available - self._slots.is_idle(match.slot)
        return wanted - len(match.pages) <= pages and (slots > 0 or not self._recurrent)

    def _take(self, request: Request, match: Match, wanted: int) -> Admission:
        for page in match.pages:  # before anything is evicted to make room
            self._pages.share(page)
        if match.slot != PAD_SLOT:
            self._slots.share(match.slot, match.label)
        row = self._rows.take()
        self._generations[row] += 1
        holding = Holding(
            row=row,
            generation=self._generations[row],
            chain=Chain(request.tokens, self._limits.page_size),
            own_slot=self._take_slot(row),
            position=match.resumable_len,
            pages=[*match.pages, *(self._take_page() for _ in range(wanted - len(match.pages)))],
            published=len(match.pages),
            checkpoint=match.slot,
            checkpoint_at=match.resumable_len,
        )
        self._holdings[row] = holding
        return Admission(row, holding.generation, holding.own_slot, match, _page_maps(holding, 0))

    def _take_page(self) -> Page:
        if not self._pages.free:
            self._index.pages.forget(self._pages.evict())
            self.counters.evicted_pages += 1
        return self._pages.take()

    def _take_slot(self, row: Row) -> Slot:
        if not self._recurrent:
            return PAD_SLOT
        self._make_slot_free()
        return self._slots.take(row)

    def _make_slot_free(self) -> None:
        if not self._slots.free:
            self._index.checkpoints.forget(self._slots.evict())
            self.counters.evicted_checkpoints += 1

    # --- committing ---

    def _running(self, row: Row, generation: int) -> Holding | None:
        """None for a row that was released while this result was in flight."""
        holding = self._holdings.get(row)
        return holding if holding and holding.generation == generation else None

    @staticmethod
    def _settle(holding: Holding, grant: Grant) -> Grant:
        if holding.grant != grant:
            raise OwnershipError(f"the device reports {grant}; outstanding is {holding.grant}")
        holding.grant = None
        return grant

    def _publish(self, holding: Holding, grant: Grant) -> None:
        """The row reads on from the slot it filled or from a later one, never again from an earlier one."""
        label = holding.chain.label(grant.line // self._limits.page_size)
        self._slots.label(grant.slot, holding.row, label)
        self._drop_checkpoint(holding)
        holding.checkpoint, holding.checkpoint_at = grant.slot, grant.line
        if self._index.checkpoints.add(label, grant.slot):
            self._slots.keep(grant.slot)
            self.counters.published += 1
        self._publish_pages(holding, grant.line)

    def _publish_pages(self, holding: Holding, length: int) -> None:
        for ordinal in range(holding.published, length // self._limits.page_size):
            page = holding.pages[ordinal]
            if self._index.pages.add(holding.chain.label(ordinal + 1), page):
                self._pages.keep(page)
            holding.published = ordinal + 1

    def _advance(self, holding: Holding, result: RowResult) -> None:
        # Every step first folds up to the last line before it, so this is the least its checkpoint can be.
        base = holding.position // self._limits.fold_every * self._limits.fold_every
        if base > holding.checkpoint_at:
            self._drop_checkpoint(holding)
        holding.position = result.position
        if self._prefix_reuse and not self._recurrent:
            self._publish_pages(holding, holding.position)

    # --- giving back ---

    def _drop_checkpoint(self, holding: Holding) -> None:
        if holding.checkpoint != PAD_SLOT:
            self._slots.drop(holding.checkpoint)
            holding.checkpoint = PAD_SLOT

    def _give_back(self, holding: Holding) -> None:
        self._drop_checkpoint(holding)
        if holding.grant:
            self._slots.release_grant(holding.grant.slot, holding.row)
        if holding.own_slot != PAD_SLOT:
            self._slots.release(holding.own_slot, holding.row)
        for page in reversed(holding.pages):  # of an idle prefix, the end is evicted first
            self._pages.drop(page)
        self._rows.release(holding.row)

    def _all_waiting(self) -> Iterator[Holding]:
        return (holding for holdings in self._waiting.values() for holding in holdings)


def _page_maps(holding: Holding, first: int) -> tuple[PageMap, ...]:
    return tuple(
        PageMap(holding.row, ordinal, page) for ordinal, page in enumerate(holding.pages[first:], start=first)
    )
