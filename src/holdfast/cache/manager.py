"""The one owner of rows, slots and pages.

Whatever a step in flight may still read or write stays where it is: the manager is told of every step when it
is launched and when it is collected, and what a row gives up in between comes back with its last step.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from ..config import Limits, pages_for
from ..ids import PAD_SLOT, Page, Row, Slot
from ..plan import Grant, PageMap, StepResult
from ..request import Request
from .audit import Audit, take_census
from .chain import Label, chain_of, common_pages
from .checkpoints import Checkpoints
from .free_list import FreeList
from .holding import Holding
from .pages import Pages
from .policy import Policy
from .radix import Match, RadixTree
from .slots import Slots
from .stats import CacheCounters, CacheStats
from .tree_check import tree_faults

OFF = Match(refused="prefix caching is off")
AHEAD = 8
"""Pages that a row is given at once, while half of all are free: each time somebody has to look after it, and the
device to be told, which may have nothing else to do meanwhile. Fewer if all rows' would be more than a quarter; but
not where there are enough for every row and all that it may absorb."""


@dataclass(frozen=True)
class Admission:
    """A row, and all it needs to absorb the tokens known when it was admitted, and drafts after them."""

    row: Row
    generation: int
    own_slot: Slot
    match: Match
    pages: tuple[PageMap, ...]


class CacheManager:
    def __init__(self, limits: Limits, *, prefix_reuse: bool = False, policy: Policy | None = None) -> None:
        self.counters = CacheCounters()
        self.policy = policy or Policy()
        self.prefix_reuse = prefix_reuse
        self.recurrent = limits.num_slots > 0
        self.keeps_checkpoints = prefix_reuse and self.recurrent
        self._limits = limits
        self._plenty = not prefix_reuse and limits.num_pages >= limits.max_num_seqs * limits.pages_per_row
        self._ahead = AHEAD if self._plenty else min(AHEAD, limits.num_pages // (4 * limits.max_num_seqs))
        self._rows = FreeList(Row, limits.max_num_seqs)
        self._generations = [0] * (limits.max_num_seqs + 1)
        self._behind = [Page(0)] * (limits.max_num_seqs + 1)  # by row: the page after its last tenant's
        self._slots = Slots(limits.num_slots)
        self._pages = Pages(limits.num_pages)
        self._tree = RadixTree(self._pages, recurrent=self.recurrent, policy=self.policy)
        self._checkpoints = Checkpoints(
            limits, self._tree, self._slots, self.counters, kept=self.keeps_checkpoints
        )
        self._holdings: dict[Row, Holding] = {}
        self._waiting: dict[int, list[Holding]] = {}  # by the step that they wait for
        self._in_flight: dict[int, Container[Row]] = {}  # the rows of each step
        self._launched = 0
        self._collected = 0

    # --- requests come, grow and go ---

    def match(self, request: Request) -> Match:
        """Where the request could resume. Its last token is always computed, for its logits."""
        if not self.prefix_reuse:
            return OFF
        chain, pages = chain_of(request, self._limits.page_size), self._whole_pages(len(request.tokens) - 1)
        found = self._tree.match(chain, pages)
        if request.owes_prompt_logprobs:
            return Match(kv_len=found.kv_len, refused="every token of the prompt has to be scored")
        if (
            self.recurrent
            and found.nodes
            and not found.nodes[-1].readers
            and not self._checkpoints.may_promise
        ):
            return Match(kv_len=found.kv_len, refused="all checkpoint slots are in use")
        return found

    def admit(self, request: Request, *, headroom: int = 0, match: Match | None = None) -> Admission | None:
        """A row with room for every token the request has; None, and nothing changed, if it does not fit.

        headroom  so many more pages must be available; they are not taken
        match     what `match` said of it, if nothing happened since
        """
        match = self.match(request) if match is None else match
        if self.lacks(request, match, headroom=headroom):
            return None
        return self._take(request, match, self._pages_wanted(request))

    def lacks(self, request: Request, match: Match, *, headroom: int) -> str:
        """What there is too little of to admit it now; "" if it fits."""
        if not self.spare_rows:
            return "a row" if not self._rows else "a slot"
        idle = sum(not node.pins for node in match.nodes)
        missing = self._pages_wanted(request) + headroom - len(match.nodes)
        return "" if missing <= self._available_pages - idle else "pages"

    def _pages_wanted(self, request: Request) -> int:
        return pages_for(len(request.tokens) + self._limits.drafting_room, self._limits.page_size)

    @property
    def spare_rows(self) -> int:
        """Rows that could be given out, with the slot that goes with them."""
        spare = self._limits.running_slots - self._slots.num_running
        return min(len(self._rows), spare) if self.recurrent else len(self._rows)

    def extend(self, row: Row, length: int) -> tuple[PageMap, ...] | None:
        """The pages still missing for `length` tokens, and some more while nobody else needs them; None, and nothing
        changed, if there are not enough."""
        holding, limits = self._holdings[row], self._limits
        first = len(holding.pages)
        missing = pages_for(length, limits.page_size) - first
        if missing <= 0:
            return ()
        if missing > self._available_pages:
            return None
        self._take_pages(holding, self._with_more(holding.request, first, missing))
        return _page_maps(holding, first)

    def room(self, row: Row) -> int:
        """Tokens that its pages hold."""
        return len(self._holdings[row].pages) * self._limits.page_size

    def grant(self, row: Row, line: int) -> Grant | None:
        """A slot for the fold of a window at `line`; None if there is none, or the last grant is still out."""
        holding = self._holdings[row]
        if holding.grant is None:
            holding.grant = self._checkpoints.promise(holding, line)
            return holding.grant
        return None

    def export(self, row: Row, line: int) -> Grant | None:
        """A slot for the state at `line`, which the next run of the row passes; None if there is none."""
        holding = self._holdings[row]
        if grant := self._checkpoints.promise(holding, line):
            holding.exports.append(grant)
        return grant

    def release(self, row: Row) -> None:
        """Take back all that the row holds, once no step in flight has it."""
        holding = self._holdings.pop(row)
        if step := self._last_step(row):
            self._waiting.setdefault(step, []).append(holding)
        else:
            self._give_back(holding)

    # --- one request beside another ---

    def common_len(self, row: Row, request: Request) -> int:
        """Tokens that a running request and another begin with, in whole pages, as far as it could resume."""
        page_size = self._limits.page_size
        running, other = (chain_of(r, page_size) for r in (self._holdings[row].request, request))
        if running[:1] != other[:1]:  # as most do
            return 0
        return min(common_pages(running, other), self._whole_pages(len(request.tokens) - 1)) * page_size

    def promised_lines(self, row: Row) -> list[int]:
        """Lines whose checkpoint the row will leave behind, unless it goes before."""
        holding = self._holdings[row]
        return [grant.line for grant in holding.grants()]

    def published_len(self, row: Row) -> int:
        return len(self._holdings[row].path) * self._limits.page_size

    @property
    def may_promise(self) -> bool:
        return self._checkpoints.may_promise

    def has_grant(self, row: Row) -> bool:
        return self._holdings[row].grant is not None

    def position(self, row: Row) -> int:
        """As the last collected result had it."""
        return self._holdings[row].position

    def awaits_fold(self, row: Row) -> bool:
        """The row has reached the line it was granted a slot for, with tokens that its request keeps. A step of no
        tokens would fold it."""
        holding = self._holdings[row]
        if holding.grant is None or holding.grant.line > len(holding.request.tokens):
            return False
        return holding.grant.line == holding.base + self._limits.fold_every <= holding.position

    # --- steps are launched and collected ---

    def launched(self, step: int, rows: Container[Row]) -> None:
        self._launched = step
        self._in_flight[step] = rows

    def commit(self, result: StepResult) -> None:
        """Label what the step published, and let go of what it was the last to read."""
        for grant in result.used:
            if holding := self._tenant(grant.row, grant.generation):
                self._publish_pages(holding, grant.line)
                self._checkpoints.publish(holding, grant)
        for grant in result.missed:
            if holding := self._tenant(grant.row, grant.generation):
                self._checkpoints.take_back(holding, grant)
        holdings, page_size, reused = self._holdings, self._limits.page_size, self.prefix_reuse
        rows = zip(result.work, result.positions, result.bases, strict=True)
        for (row, generation, _, _), position, base in rows:
            holding = holdings.get(row)
            if holding is None or holding.generation != generation:
                holding = self._tenant(row, generation)
                if holding is None:
                    continue
            holding.position = position
            if base > holding.base:
                self._note_fold(holding, base)
            if reused and position >= (len(holding.path) + 1) * page_size:
                self._publish_pages(holding, position)

    def collected(self, step: int) -> None:
        """Steps are collected in the order in which they were launched."""
        self._collected = step
        self._in_flight.pop(step, None)
        for holding in self._waiting.pop(step, ()):
            self._give_back(holding)

    def take_freed(self) -> tuple[tuple[Slot, ...], tuple[Page, ...]]:
        """What nobody holds any more, since this was last asked: for the plan, so that the device knows."""
        return self._slots.free.take_freed(), self._pages.free.take_freed()

    def in_flight(self, row: Row) -> bool:
        return bool(self._last_step(row))

    def _last_step(self, row: Row) -> int:
        """In flight, of those with this row; 0 if there is none."""
        return next((step for step, rows in reversed(self._in_flight.items()) if row in rows), 0)

    @property
    def any_in_flight(self) -> bool:
        return self._launched > self._collected

    @property
    def returning(self) -> bool:
        """Something released will come back when a step in flight is collected."""
        return bool(self._waiting)

    # --- what prefix reuse did, and a fresh start for it ---

    def stats(self) -> CacheStats:
        return CacheStats(
            counters=replace(self.counters, outcomes=dict(self.counters.outcomes)),
            pages=self._tree.num_pages,
            idle_pages=self._tree.num_idle,
            checkpoints=self._tree.num_checkpoints,
            num_pages=self._limits.num_pages,
            num_slots=self._limits.num_slots,
            num_checkpoints=self._limits.num_checkpoints,
            free_rows=len(self._rows),
            free_pages=len(self._pages.free),
            free_slots=len(self._slots.free),
        )

    def reset(self) -> None:
        """No later request will find what was computed so far. Running ones keep what they read."""
        for node in self._tree.reset():
            self._checkpoints.drop(node)
        for holding in (*self._holdings.values(), *self._all_waiting()):
            holding.publishes = False

    # --- is every id where it should be? ---

    def check(self) -> Audit:
        running, waiting = list(self._holdings.values()), list(self._all_waiting())
        taken = {Row(n): 1 for n in range(1, self._rows.total + 1) if n not in self._rows}
        nodes = dict.fromkeys([*self._tree.nodes(), *(node for h in running + waiting for node in h.path)])
        readers = {slot: node.readers for slot, node in self._tree.checkpoints() if node.readers}
        labelled = {slot: node.label for slot, node in self._tree.checkpoints()}
        faults = tree_faults(self._tree, self._limits.page_size, [h.path for h in running + waiting])
        if labelled != dict(self._slots.labels):
            faults.append("slots are labelled otherwise than the tree has them")
        return Audit(
            rows=take_census(self._rows, taken, (h.row for h in running), (h.row for h in waiting)),
            slots=take_census(
                self._slots.free,
                dict.fromkeys(self._slots.owners, 1) | readers,
                (slot for h in running for slot in h.slots()),
                (slot for h in waiting for slot in h.slots()),
                (slot for slot in labelled if slot not in readers),
            ),
            pages=take_census(
                self._pages.free,
                dict.fromkeys(self._pages.writers, 1) | {node.page: node.pins for node in nodes if node.pins},
                (page for h in running for page in h.all_pages()),
                (page for h in waiting for page in h.all_pages()),
                (node.page for node in nodes if not node.pins),
            ),
            tree=tuple(faults),
        )

    # --- taking ---

    @property
    def _available_pages(self) -> int:
        """Pages that can be had now, if need be by evicting."""
        return len(self._pages.free) + self._tree.num_idle

    def _whole_pages(self, length: int) -> int:
        return length // self._limits.page_size

    def _take(self, request: Request, match: Match, wanted: int) -> Admission:
        self._count(request, match)
        self._tree.tick()
        self._tree.pin(match.nodes)  # before anything is evicted to make room
        reading = self._checkpoints.consume(match)
        row = self._rows.take()
        self._generations[row] += 1
        holding = Holding(
            row=row,
            generation=self._generations[row],
            request=request,
            own_slot=self._checkpoints.take_own(row),
            position=match.resumable_len,
            base=match.resumable_len,
            pages=[*match.pages],
            path=list(match.nodes),
            reading=reading,
        )
        self._take_pages(holding, self._with_more(request, len(match.nodes), wanted - len(match.nodes)))
        self._holdings[row] = holding
        return Admission(row, holding.generation, holding.own_slot, match, _page_maps(holding, 0))

    def _count(self, request: Request, match: Match) -> None:
        if request.metrics.preemptions:
            self.counters.resumed_after_preemption += match.resumable_len
            return
        self.counters.requests += 1
        self.counters.outcomes[match.outcome] = self.counters.outcomes.get(match.outcome, 0) + 1
        self.counters.prompt_tokens += len(request.prompt)
        self.counters.matched_tokens += match.kv_len
        self.counters.resumed_tokens += match.resumable_len
        self.counters.lost_tokens += match.kv_len - match.resumable_len

    def _with_more(self, request: Request, held: int, missing: int) -> int:
        """Some pages ahead, if nobody misses them, but none that the longest answer does not reach."""
        limits = self._limits
        longest = len(request.prompt) + request.params.max_tokens + limits.drafting_room
        most = min(pages_for(longest, limits.page_size), limits.pages_per_row)
        count = max(missing, min(self._ahead, most - held))
        half_free = len(self._pages.free) - count >= limits.num_pages // 2
        return count if self._plenty or half_free else missing

    def _take_pages(self, holding: Holding, count: int) -> None:
        """One after another where it can be: a context that lies in one piece need not be gathered to be read."""
        while len(self._pages.free) < count:
            node = self._tree.evict_page()
            self.counters.evicted_pages += 1
            self.counters.lost_checkpoints += node.slot != PAD_SLOT
            self._checkpoints.drop(node)
        pages, row = holding.pages, holding.row
        for _ in range(count):
            pages.append(self._pages.take(row, Page(pages[-1] + 1) if pages else self._first_page(row)))

    def _first_page(self, row: Row) -> Page:
        """Where a row has room to grow: at the beginning of its share, or behind what its last tenant left there."""
        begin = Page(1 + (row - 1) * (self._limits.num_pages // self._limits.max_num_seqs))
        return begin if begin in self._pages.free else self._behind[row]

    # --- committing ---

    def _tenant(self, row: Row, generation: int) -> Holding | None:
        """None for a tenant that gave everything back. One that left keeps what its last steps publish."""
        holding = self._holdings.get(row)
        if holding and holding.generation == generation:
            return holding
        return next((h for h in self._all_waiting() if (h.row, h.generation) == (row, generation)), None)

    def _publish_pages(self, holding: Holding, length: int) -> None:
        """Pages that are full, and whose every token is known here: what was sampled since is not."""
        page_size, path = self._limits.page_size, holding.path
        full = self._whole_pages(min(length, len(holding.request.tokens)))
        if not holding.publishes or full <= len(path):
            return
        chain = chain_of(holding.request, page_size)
        for ordinal in range(len(path), full):
            label, page = Label((ordinal + 1) * page_size, chain[ordinal]), holding.pages[ordinal]
            path.append(self._tree.publish(path[-1] if path else None, label, page, holding.row))

    def _note_fold(self, holding: Holding, base: int) -> None:
        self.counters.folds += 1
        holding.base = base
        if holding.reading and base > holding.reading.position:
            self._checkpoints.stop_reading(holding)

    # --- giving back ---

    def _give_back(self, holding: Holding) -> None:
        self._checkpoints.give_back(holding)
        if holding.pages:
            self._behind[holding.row] = Page(holding.pages[-1] + 1)
        for page in holding.writable_pages():
            self._pages.release(page, holding.row)
        for node in self._tree.unpin(holding.path, holding.row):
            self._checkpoints.drop(node)
        self._rows.release(holding.row)

    def _all_waiting(self) -> Iterator[Holding]:
        return (holding for holdings in self._waiting.values() for holding in holdings)


def _page_maps(holding: Holding, first: int) -> tuple[PageMap, ...]:
    return tuple(
        PageMap(holding.row, ordinal, page) for ordinal, page in enumerate(holding.pages[first:], start=first)
    )
