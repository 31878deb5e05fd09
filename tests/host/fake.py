"""A device made of tuples. It computes with the tokens that its memory holds, and objects to every wrong one.

A slot's content is the tuple of tokens folded into it; a page's, the tokens written to it and all before.
So every read can be compared with what it should have found, and a wrong one changes what is sampled.
Cursors, folds, grants and exports follow the device's rules to the letter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.config import Limits, pages_for, run_reaches
from holdfast.ids import PAD_PAGE, PAD_ROW, PAD_SLOT, Page, Row, Slot
from holdfast.plan import Grant, PageMap, RowStart, RowWork, StepPlan, StepResult
from holdfast.request import SamplingParams

from .results import RowResult, step_result

Owner = tuple[Row, int]
Loses = Callable[[Grant], bool]

DRAFTING = 17  # not a word: Python hashes those differently in every process


def next_token(tokens: Sequence[int], vocab_size: int) -> int:
    """The fake's model: any change to any token changes what follows."""
    return hash(tuple(tokens)) % vocab_size


def expected_output(
    prompt: Sequence[int], params: SamplingParams, eos: frozenset[int], limits: Limits
) -> list[int]:
    """What a request must answer, whatever runs beside it."""
    tokens = list(prompt)
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
    while len(tokens) < min(len(prompt) + params.max_tokens, limits.max_model_len):
        tokens.append(next_token(tokens, limits.vocab_size))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


@dataclass
class KV:
    """A page: whose it is to write, what was written, and all that came before."""

    writer: Owner
    before: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass
class DeviceRow:
    generation: int
    tokens: list[int]
    own_slot: Slot
    read_slot: Slot
    base: int
    journal: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    grant: Grant | None = None
    table: dict[int, Page] = field(default_factory=dict)

    @property
    def position(self) -> int:
        return self.base + len(self.journal)


@dataclass(frozen=True)
class InFlight:
    """A step that has not been collected, and all that it may be reading or writing."""

    result: StepResult
    rows: frozenset[Row]
    slots: frozenset[Slot]
    pages: frozenset[Page]


def never(grant: Grant) -> bool:
    return False


class FakeExecutor:
    def __init__(self, limits: Limits, *, loses: Loses = never) -> None:
        self.limits = limits
        self.recurrent = limits.num_slots > 0
        self.loses = loses
        self.rows: dict[Row, DeviceRow] = {}
        self.slots: dict[Slot, tuple[int, ...]] = {}
        self.slot_writer: dict[Slot, Owner] = {}
        self.pages: dict[Page, KV] = {}
        self.in_flight: deque[InFlight] = deque()
        self.steps = 0

    # --- the engine's side ---

    def launch(self, plan: StepPlan) -> None:
        """Run the step at once, as a stream would before any later one, and keep the result for `collect`."""
        self._check_plan(plan)
        shared = {start.row: start.base // self.limits.page_size for start in plan.starts}
        for start in plan.starts:
            self._start(start)
        for page_map in plan.pages:
            self._map(page_map, shared=page_map.ordinal < shared.get(page_map.row, 0))
        for grant in plan.grants + plan.exports:
            self._receive(grant, keep=grant in plan.grants)

        reach = {work.row: self._reach(self.rows[work.row], plan) for work in plan.work}
        used: list[Grant] = []
        missed: list[Grant] = []
        standing = zip(plan.work, plan.positions, plan.uncertain, strict=True)
        for work, position, uncertain in standing:
            behind = position - self.rows[work.row].position
            assert 0 <= behind <= uncertain, "the host expected the row elsewhere"
        rows = [self._run(work, plan, used, missed) for work in plan.work]
        self.in_flight.append(
            InFlight(
                result=step_result(plan.step, rows, tuple(used), tuple(missed)),
                rows=frozenset(reach),
                slots=frozenset(slot for slots, _ in reach.values() for slot in slots),
                pages=frozenset(page for _, pages in reach.values() for page in pages),
            )
        )

    def collect(self) -> StepResult:
        return self.in_flight.popleft().result

    # --- what the plan brings ---

    def _check_plan(self, plan: StepPlan) -> None:
        self.steps += 1
        assert plan.step == self.steps, "steps are numbered without gaps"
        assert plan.work, "an empty step was launched"
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert len({work.row for work in plan.work}) == len(plan.work) <= self.limits.max_num_seqs
        assert len({start.row for start in plan.starts}) == len(plan.starts)
        assert all(work.row != PAD_ROW and work.tokens >= 0 for work in plan.work)
        self._free(plan)

    def _free(self, plan: StepPlan) -> None:
        """Whatever is read after it was freed is missed."""
        for slot in plan.freed_slots:
            assert not any(slot in step.slots for step in self.in_flight), f"slot {slot} is in flight"
            self.slots.pop(slot, None)
            self.slot_writer.pop(slot, None)
        for page in plan.freed_pages:
            assert not any(page in step.pages for step in self.in_flight), f"page {page} is in flight"
            self.pages.pop(page, None)

    def _start(self, start: RowStart) -> None:
        assert not any(start.row in step.rows for step in self.in_flight), f"row {start.row} is in flight"
        before = self.rows.get(start.row)
        assert start.generation == (before.generation + 1 if before else 1)
        self.rows[start.row] = DeviceRow(
            start.generation, list(start.tokens), start.own_slot, start.read_slot, start.base
        )
        if self.recurrent:
            assert start.own_slot != start.read_slot
            assert start.base == 0 or len(self.slots[start.read_slot]) == start.base
            self._hand_out(start.own_slot, (start.row, start.generation))
        else:
            assert start.own_slot == start.read_slot == PAD_SLOT

    def _map(self, page_map: PageMap, *, shared: bool) -> None:
        row = self.rows[page_map.row]
        assert page_map.page != PAD_PAGE
        assert page_map.ordinal == len(row.table) < self.limits.pages_per_row
        row.table[page_map.ordinal] = page_map.page
        if not shared:
            assert not any(page_map.page in step.pages for step in self.in_flight), "a page in flight"
            self.pages[page_map.page] = KV(writer=(page_map.row, row.generation))

    def _receive(self, grant: Grant, *, keep: bool) -> None:
        row = self.rows[grant.row]
        assert grant.generation == row.generation
        assert row.grant is None or not keep, "one grant is outstanding already"
        assert grant.line % self.limits.page_size == 0
        self._hand_out(grant.slot, (grant.row, grant.generation))
        if keep:
            row.grant = grant

    def _hand_out(self, slot: Slot, owner: Owner) -> None:
        assert slot != PAD_SLOT
        assert not any(slot in step.slots for step in self.in_flight), f"slot {slot} is in flight"
        self.slot_writer[slot] = owner
        self.slots.pop(slot, None)

    def _reach(self, row: DeviceRow, plan: StepPlan) -> tuple[set[Slot], set[Page]]:
        exports = {g.slot for g in plan.exports if self.rows[g.row] is row}
        slots = {row.own_slot, row.read_slot, row.grant.slot if row.grant else PAD_SLOT} | exports
        return slots - {PAD_SLOT}, set(row.table.values())

    # --- one row's step ---

    def _run(self, work: RowWork, plan: StepPlan, used: list[Grant], missed: list[Grant]) -> RowResult:
        row = self.rows[work.row]
        assert row.generation == work.generation
        fresh = self._fresh(row, work)
        start = row.position
        exports = [g for g in plan.exports if g.row == work.row]
        if work.tokens > self.limits.max_window:
            self._absorb(row, work, fresh)
            self._fold(row, row.position // self.limits.fold_every * self.limits.fold_every, work, used)
            self._export(row, exports, start, used, missed)
        else:
            assert not exports, "only a long run exports"
            if len(row.journal) >= self.limits.fold_every:
                self._fold(row, row.base + self.limits.fold_every, work, used)
            self._absorb(row, work, fresh)
            assert len(row.journal) + self.limits.max_drafts <= self.limits.journal_capacity
        if row.grant and row.grant.line <= row.base:
            missed.append(row.grant)
            row.grant = None
        proposed = min(work.window.drafts, len(row.drafts))
        return RowResult(
            row=work.row,
            generation=work.generation,
            tokens=self._choose(row, work, plan.propose),
            position=row.position,
            base=row.base,
            window=work.window,
            proposed=proposed,
        )

    def _fresh(self, row: DeviceRow, work: RowWork) -> list[int]:
        """Known tokens, then drafts, then whatever lies where no draft was made."""
        drafts = work.window.drafts
        fresh = row.tokens[row.position : row.position + work.tokens - drafts]
        assert len(fresh) == work.tokens - drafts, "a token is absorbed before it exists"
        assert not drafts or fresh == row.tokens[-1:], "drafts do not follow the last token"
        return fresh + (row.drafts + [0] * drafts)[:drafts]

    def _absorb(self, row: DeviceRow, work: RowWork, fresh: list[int]) -> None:
        self._read_state(row)
        for token in fresh:
            self._write_kv(row, work, token)
            row.journal.append(token)

    def _choose(self, row: DeviceRow, work: RowWork, propose: int) -> tuple[int, ...]:
        """In each place of the window, until a draft is not what is chosen there."""
        if not work.window.bonus:
            assert not work.window.drafts
            self._context(row, row.position)
            return ()
        known = len(row.tokens)
        for drafted in [*row.drafts[: work.window.drafts], None]:
            assert len(row.tokens) < self.limits.max_model_len
            context = self._context(row, len(row.tokens))
            row.tokens.append(next_token(context, self.limits.vocab_size))
            if row.tokens[-1] != drafted:
                break
        self._reject(row, len(row.tokens) - 1)
        self._draft(row, propose)
        return tuple(row.tokens[known:])

    def _context(self, row: DeviceRow, length: int) -> tuple[int, ...]:
        """The first so many tokens, as KV and state have them."""
        context = self._read_kv(row, length)
        if self.recurrent:
            assert self._read_state(row)[:length] == context
        return context

    def _reject(self, row: DeviceRow, position: int) -> None:
        """Drafts from here on: the position goes back, and what they left behind is nobody's."""
        row.journal = row.journal[: position - row.base]
        size = self.limits.page_size
        for ordinal in range(position // size, len(row.table)):
            kv = self.pages[row.table[ordinal]]
            kv.tokens = kv.tokens[: max(0, position - ordinal * size)]

    def _draft(self, row: DeviceRow, most: int) -> None:
        """Right until, by chance, one is wrong; by chance there are fewer. A drafter keeps KV of each."""
        assert most <= self.limits.max_drafts
        end = row.position + most
        assert pages_for(end, self.limits.page_size) <= len(row.table), "no page for what a drafter keeps"
        row.drafts, chance = [], hash((DRAFTING, *row.tokens))
        for place in range(chance % (most + 1)):
            right = next_token([*row.tokens, *row.drafts], self.limits.vocab_size)
            wrong = hash((chance, place)) % 3 == 0
            row.drafts.append((right + wrong) % self.limits.vocab_size)

    # --- recurrent state ---

    def _read_state(self, row: DeviceRow) -> tuple[int, ...]:
        if not self.recurrent:
            return ()
        saved = self.slots[row.read_slot] if row.base else ()
        assert row.base <= len(row.tokens), "a draft was folded"
        assert saved == tuple(row.tokens[: row.base]), f"slot {row.read_slot} holds another state"
        return saved + tuple(row.journal)

    def _fold(self, row: DeviceRow, line: int, work: RowWork, used: list[Grant]) -> None:
        if line == row.base:
            return
        state, owner, grant = self._read_state(row)[:line], (work.row, work.generation), row.grant
        if grant and grant.line == line and not self.loses(grant):
            self._write_slot(grant.slot, owner, state)
            del self.slot_writer[grant.slot]  # immutable from here on
            row.read_slot, row.grant = grant.slot, None
            used.append(grant)
        elif self.recurrent:
            self._write_slot(row.own_slot, owner, state)
            row.read_slot = row.own_slot
        row.journal = row.journal[line - row.base :]
        row.base = line

    def _export(
        self, row: DeviceRow, exports: list[Grant], start: int, used: list[Grant], missed: list[Grant]
    ) -> None:
        for export in exports:
            assert run_reaches(export.line, start, row.position), f"a run has no state at {export.line}"
            if start < export.line <= row.base and not self.loses(export):
                state = self._read_state(row)[: export.line]
                self._write_slot(export.slot, (export.row, export.generation), state)
                del self.slot_writer[export.slot]
                used.append(export)
            else:
                missed.append(export)

    def _write_slot(self, slot: Slot, owner: Owner, state: tuple[int, ...]) -> None:
        assert self.slot_writer.get(slot) == owner, f"slot {slot} is not {owner}'s to write"
        self.slots[slot] = state

    # --- KV ---

    def _write_kv(self, row: DeviceRow, work: RowWork, token: int) -> None:
        ordinal, place = divmod(row.position, self.limits.page_size)
        kv = self.pages[row.table[ordinal]]
        assert kv.writer == (work.row, work.generation), "a page of another request is written"
        assert len(kv.tokens) == place, "KV is written twice, or leaves a hole"
        if place == 0:
            kv.before = self._read_kv(row, row.position)
        kv.tokens += (token,)

    def _read_kv(self, row: DeviceRow, length: int) -> tuple[int, ...]:
        context: tuple[int, ...] = ()
        for ordinal in range(pages_for(length, self.limits.page_size)):
            kv = self.pages[row.table[ordinal]]
            assert kv.before == context, f"page {row.table[ordinal]} follows other tokens"
            context += kv.tokens[: length - len(context)]
        known = tuple(row.tokens[:length])
        assert context[: len(known)] == known, "KV of other tokens"
        assert len(context) == length, "KV is missing"
        return context
