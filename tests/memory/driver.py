"""A state pool with one recurrent layer, driven step by step beside the float64 oracle.

Every step is checked: the outputs of every token, the bytes that changed, each state that was folded or
exported, the cursors, the fate of grants. Whatever no later step may read is overwritten with NaN.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.config import CHUNK
from holdfast.ids import Row, Slot
from holdfast.memory.state_pool import Committed, StatePool
from holdfast.ops.backend import choose
from holdfast.ops.step import Export, StateStep, Tree
from holdfast.plan import Grant, RowStart
from holdfast.request import SamplingParams

from .case import CONV, LAYER, Setup
from .draws import Draw
from .oracle import Array, History, Trial, path_to, rounding_lines, tokens_of
from .spy import Cells, Snapshot, poison


@dataclass(frozen=True)
class Work:
    """`count` tokens for `row`, 0 being nobody, of which the first `accepted` turn out right.

    With `parents` they branch, and the accepted ones are those on the way to node `leaf`, none if it is -1.
    """

    row: int
    count: int
    accepted: int = 0
    parents: tuple[int, ...] | None = None
    leaf: int = -1

    @property
    def path(self) -> list[int]:
        if self.parents is None:
            return list(range(self.accepted))
        return [] if self.leaf < 0 else path_to(self.leaf, self.parents)


@dataclass
class Tenant:
    """What the driver believes of a row."""

    history: History
    own: int
    read: int
    base: int
    grant: tuple[int, int] | None = None
    """(slot, line)"""


@dataclass(frozen=True)
class Lane:
    """What a step must do for one row, worked out from the rules and not from the code under test."""

    work: Work
    tenant: Tenant
    tokens: slice
    run: bool
    position: int
    end_base: int
    write_slot: int
    rounded_at: frozenset[int]

    @property
    def folds(self) -> bool:
        return self.end_base > self.tenant.base


class Driver:
    def __init__(self, setup: Setup, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.setup, self.rng = setup, random.Random(seed)
        self.draw = Draw(setup.shape, generator, setup.decay)
        self.ops = choose(setup.backend, exact=setup.exact)
        self.pool = StatePool({LAYER: setup.spec}, setup.limits, torch.device("cpu"))
        poison(self.pool)
        self.layer = self.pool.layers[LAYER]
        assert self.layer.temporal is not None
        self.temporal, self.conv = self.layer.temporal, self.layer.conv[CONV]
        size = (setup.shape.channels, setup.shape.width)
        self.weight = torch.randint(-4, 5, size, generator=generator) / 4
        self.bias = torch.randint(-4, 5, size[:1], generator=generator) / 4
        self.tenants: dict[int, Tenant] = {}
        self.free = list(range(setup.rows + 1, setup.rows + setup.spare_slots + 1))
        self.published: dict[int, History] = {}
        """Slots left behind, and the request that each of them remembers."""
        self.folds = 0
        self.worst = 0.0

    # --- rows and slots ---

    def start(self, row: int, resume: int | None = None) -> None:
        """A new tenant, cold or from a published slot. Whatever the last one left is poisoned."""
        old = self.tenants.pop(row, None)
        if old is not None and old.grant is not None:
            self.free.append(old.grant[0])
        for ring in self.layer.rings().values():
            ring[row] = torch.nan
        own = row  # slots 1 .. rows are the rows' own here
        self._poison_slot(own)
        history, read = self._cold(), own
        if resume is not None:
            history, read = self.published[resume], resume
        tenant = Tenant(history.until(history.position), own, read, history.position)
        before = Snapshot(self.pool)
        start = RowStart(Row(row), 1, (), Slot(own), Slot(read), tenant.base, SamplingParams(), 0)
        self.pool.start((start,))
        before.assert_only(slots=set(), cells={}, cursors={row})  # resuming copies nothing
        self.tenants[row] = tenant

    def grant(self, row: int, line: int) -> None:
        slot = self.take_slot()
        if slot is not None:
            self.tenants[row].grant = (slot, line)
            self.pool.grant((Grant(Row(row), 1, Slot(slot), line),), turn=0)

    def take_slot(self) -> int | None:
        """A free slot, or one whose checkpoint nobody reads."""
        if not self.free:
            idle = sorted(set(self.published) - {tenant.read for tenant in self.tenants.values()})
            if not idle:
                return None
            self.free.append(self.rng.choice(idle))
            del self.published[self.free[-1]]
        self._poison_slot(self.free[-1])
        return self.free.pop()

    def _cold(self) -> History:
        weight, bias = self.weight.double().numpy(), self.bias.double().numpy()
        return History(self.setup.shape, weight, bias, self.setup.state_dtype)

    def _poison_slot(self, slot: int) -> None:
        for saved in self.layer.saved().values():
            saved[slot] = torch.nan if saved.dtype.is_floating_point else 77  # whose scales are NaN, then

    # --- a step ---

    def step(self, work: Iterable[Work], exports: Sequence[tuple[int, int]] = ()) -> Committed:
        """`exports` are (row, line) of runs; as many as there are slots for."""
        work = sorted(work, key=self._is_run)
        counts = torch.tensor([w.count for w in work], dtype=torch.int64)
        offsets = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        lanes = {lane: self._expect(w, int(offsets[lane])) for lane, w in enumerate(work) if w.row}
        inputs = self.inputs(work)
        step = self.begin(work, counts, offsets, self._place(lanes, exports))

        before = Snapshot(self.pool)
        outputs, mixed = self.run_ops(inputs, step)
        self._check_writes(before, lanes.values(), step.exports)
        trials = {lane: self._try_out(expected, inputs) for lane, expected in lanes.items()}
        for lane, trial in trials.items():
            self.compare(outputs[lanes[lane].tokens], trial.outputs, f"outputs of {work[lane]}")
            self.compare(mixed[lanes[lane].tokens], trial.mixed, f"convolution of {work[lane]}")
        padding = (step.rows == 0).repeat_interleave(counts)
        assert outputs[padding].isnan().all() and mixed[padding].isnan().all(), "a padded lane was computed"

        committed = self._commit(work, step)
        for lane, trial in trials.items():
            self._accept(lanes[lane], trial)
        self._check_folds(lanes, step.exports)
        self._check_cursors(lanes, committed)
        self._poison_what_nobody_needs()
        return committed

    def _is_run(self, work: Work) -> bool:
        return work.count > self.setup.window

    def _expect(self, work: Work, first: int) -> Lane:
        tenant, grid, run = self.tenants[work.row], self.setup.grid, self._is_run(work)
        position = tenant.history.position
        if run:
            end_base = (position + work.count) // grid * grid
        else:
            end_base = tenant.base + (grid if position - tenant.base >= grid else 0)
        granted = tenant.grant is not None and tenant.grant[1] == end_base
        block = CHUNK if run and not self.setup.exact else grid
        return Lane(
            work=work,
            tenant=tenant,
            tokens=slice(first, first + work.count),
            run=run,
            position=position,
            end_base=end_base,
            write_slot=tenant.grant[0] if tenant.grant and granted else tenant.own,
            rounded_at=frozenset(rounding_lines(position, work.count, grid, block)),
        )

    def inputs(self, work: Sequence[Work]) -> dict[str, Tensor]:
        """Random tokens; those of padded lanes are NaN."""
        parts = [self.draw(w.count) for w in work] or [self.draw(0)]
        for w, part in zip(work, parts, strict=False):
            if not w.row:
                part.update((name, torch.full_like(x, torch.nan)) for name, x in part.items())
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _place(self, lanes: dict[int, Lane], exports: Sequence[tuple[int, int]]) -> tuple[Export, ...]:
        lane_of = {expected.work.row: lane for lane, expected in lanes.items()}
        slots = [(lane_of[row], self.take_slot(), line) for row, line in exports]
        return tuple(Export(lane, slot, line) for lane, slot, line in slots if slot is not None)

    def begin(
        self, work: Sequence[Work], counts: Tensor, offsets: Tensor, exports: tuple[Export, ...]
    ) -> StateStep:
        windows = [w for w in work if not self._is_run(w)]
        longest = max((w.count for w in windows), default=0)
        return self.pool.begin(
            rows=torch.tensor([w.row for w in work], dtype=torch.int64),
            counts=counts,
            offsets=offsets,
            num_windows=len(windows),
            longest_window=longest,
            exports=exports,
            tree=tree_of(windows, longest) if any(w.parents for w in work) else None,
        )

    def run_ops(self, inputs: dict[str, Tensor], step: StateStep) -> tuple[Tensor, Tensor]:
        mixed = self.ops.causal_conv(inputs["x"], self.weight, self.bias, self.conv, step)
        q, k, v, log_g, beta = (inputs[name] for name in ("q", "k", "v", "log_g", "beta"))
        return self.ops.gated_delta(q, k, v, log_g, beta, self.temporal, step), mixed

    def _try_out(self, lane: Lane, inputs: dict[str, Tensor]) -> Trial:
        tokens = tokens_of({name: x[lane.tokens] for name, x in inputs.items()})
        if lane.work.parents is not None:
            return lane.tenant.history.try_tree(tokens, lane.work.parents)
        return lane.tenant.history.try_chain(tokens, lane.rounded_at)

    def _commit(self, work: Sequence[Work], step: StateStep) -> Committed:
        """Cursors move, and in a tree a few entries; never a whole state."""
        before = Snapshot(self.pool)
        paths = [w.path for w in work]
        accepted = torch.tensor([len(path) for path in paths], dtype=torch.int64)
        cells: dict[str, Cells] = {}
        if step.tree is not None:
            padded = [path + [0] * (step.longest_window - len(path)) for path in paths[: step.num_windows]]
            self.pool.compact(step=step, path=torch.tensor(padded), accepted=accepted)
            kept = {w.row: range(len(w.path)) for w in work[: step.num_windows] if w.row}
            first = {row: self.tenants[row].history.position for row in kept}
            for name, ring in self.layer.rings().items():
                size = ring.shape[1]
                cells[f"{LAYER}.{name}"] = {(r, (first[r] + i) % size) for r in kept for i in kept[r]}
        committed = self.pool.commit(step=step, accepted=accepted)
        before.assert_only(slots=set(), cells=cells, cursors={w.row for w in work} - {0})
        return committed

    def _accept(self, lane: Lane, trial: Trial) -> None:
        if lane.work.parents is not None:
            lane.tenant.history.accept_path(trial, lane.work.path, lane.rounded_at)
        else:
            lane.tenant.history.accept(trial, lane.work.accepted)

    # --- checks ---

    def compare(self, got: Tensor, expected: Sequence[Array] | Array, what: str) -> None:
        if len(expected):
            wanted = np.asarray(expected)
            error = float(np.abs(got.double().numpy() - wanted).max() / (1.0 + np.abs(wanted).max()))
            self.worst = max(self.worst, error)
            assert error <= self.setup.tolerance, f"{what}: {error} off"

    def _check_writes(self, before: Snapshot, lanes: Iterable[Lane], exports: Sequence[Export]) -> None:
        """Whole states only where a line was folded; entries only at the lanes' own new positions."""
        lanes, cells = list(lanes), {}
        for name, ring in self.layer.rings().items():
            cells[f"{LAYER}.{name}"] = new_cells(lanes, ring.shape[1], conv=name.startswith("conv."))
            for lane in (lane for lane in lanes if not lane.run):
                read = {(lane.work.row, place) for place in self._needed(lane.tenant, name)}
                overwritten = read & cells[f"{LAYER}.{name}"]
                assert not overwritten, f"{name}: {lane.work} writes where the same step reads"
        written = {lane.write_slot for lane in lanes if lane.folds} | {export.slot for export in exports}
        before.assert_only(slots=written, cells=cells, cursors=set())

    def _check_folds(self, lanes: dict[int, Lane], exports: Sequence[Export]) -> None:
        for lane in lanes.values():
            if lane.folds:
                self._check_slot(lane.write_slot, lane.tenant.history, lane.end_base)
                self.folds += 1
        for export in exports:
            history = lanes[export.lane].tenant.history
            self._check_slot(export.slot, history, export.line)
            self.published[export.slot] = history.until(export.line)

    def _check_slot(self, slot: int, history: History, line: int) -> None:
        saved = self.temporal.saved[slot]
        if self.temporal.scale is not None:
            saved = saved.float() * self.temporal.scale[slot].float()
        logical = saved if self.setup.backend == "reference" else saved.transpose(-1, -2)
        self.compare(logical, history.states[line], f"slot {slot}, line {line}")
        conv = self.conv.saved[slot].double().numpy()
        assert np.array_equal(conv, history.inputs_before(line)), f"slot {slot}: inputs before line {line}"

    def _check_cursors(self, lanes: dict[int, Lane], committed: Committed) -> None:
        """The rules once more, on the driver's side, and then row by row against the device."""
        for index, lane in lanes.items():
            tenant, grant = lane.tenant, lane.tenant.grant
            used = lane.folds and grant is not None and grant[1] == lane.end_base
            passed = grant is not None and grant[1] <= lane.end_base
            tenant.read, tenant.base = (lane.write_slot if lane.folds else tenant.read), lane.end_base
            if grant is not None and used:
                self.published[grant[0]] = tenant.history.until(grant[1])
            elif grant is not None and passed:
                self.free.append(grant[0])
            tenant.grant = None if passed else grant
            fate = (bool(committed.used[index]), bool(committed.missed[index]))
            assert fate == (used, passed and not used), f"grant {grant} of {lane.work}: {fate}"
            assert int(committed.position[index]) == tenant.history.position
        for row, tenant in self.tenants.items():
            length = tenant.history.position - tenant.base
            expected = (tenant.own, tenant.read, tenant.base, length, *(tenant.grant or (0, 0)))
            found = tuple(int(cursor[row]) for cursor in vars(self.pool.cursors).values())
            assert found == expected, f"cursors of row {row}"

    def _needed(self, tenant: Tenant, name: str) -> set[int]:
        """Places of a ring that the next step may read: entries since the checkpoint, or a few inputs."""
        size, position, first = self.layer.rings()[name].shape[1], tenant.history.position, tenant.base
        if name.startswith("conv."):
            next_read = min(position, tenant.base + self.setup.grid) - (self.setup.shape.width - 1)
            first = max(tenant.base, next_read)
        needed = {p % size for p in range(first, position)}
        assert len(needed) == position - first, f"{name} holds fewer places than are needed"
        return needed

    def _poison_what_nobody_needs(self) -> None:
        """Rejected tails, entries below the checkpoint, inputs that no window and no fold can ask for."""
        for row, tenant in self.tenants.items():
            for name, ring in self.layer.rings().items():
                needed = self._needed(tenant, name)
                ring[row, [place for place in range(ring.shape[1]) if place not in needed]] = torch.nan


def new_cells(lanes: Iterable[Lane], size: int, *, conv: bool) -> Cells:
    """Ring places that the lanes' tokens take; a run keeps only what a later step can ask for."""
    cells: Cells = set()
    for lane in lanes:
        first, end = lane.position, lane.position + lane.work.count
        if lane.run:
            first = max(first, end - size if conv else lane.end_base)
        cells |= {(lane.work.row, position % size) for position in range(first, end)}
    return cells


def tree_of(windows: Sequence[Work], longest: int) -> Tree:
    ancestors = torch.zeros(len(windows), longest, longest, dtype=torch.bool)
    depths = torch.zeros(len(windows), longest, dtype=torch.int64)
    for lane, window in enumerate(windows):
        parents = range(-1, window.count - 1) if window.parents is None else window.parents
        for node in range(window.count):
            path = path_to(node, parents)
            ancestors[lane, node, path] = True
            depths[lane, node] = len(path) - 1
    return Tree(ancestors, depths)
