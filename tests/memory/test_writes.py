"""A spy on the pools: what a step may write, what it must not, and what it must not even read."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from holdfast.ids import Page, Row
from holdfast.memory.state_pool import moves_along
from holdfast.ops.attention.heads import Heads
from holdfast.ops.backend import choose
from holdfast.ops.step import StateStep
from holdfast.plan import PageMap

from .driver import Driver, Setup, Work, tree_of
from .kv import attention_step, kv_pool
from .spy import Snapshot, kv_tensors, same_bits

modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])


class Spy(Driver):
    """Counts the whole states that each step's operations write."""

    written: Counter[int]

    def run_ops(self, inputs: dict[str, Tensor], step: StateStep) -> tuple[Tensor, Tensor]:
        before = Snapshot(self.pool)
        results = super().run_ops(inputs, step)
        changed = {name: slots for name, slots in before.changed("slot")}
        assert len({tuple(slots) for slots in changed.values()}) <= 1, f"parts of a checkpoint: {changed}"
        self.written = Counter(slot for slots in list(changed.values())[:1] for slot in slots)
        return results


@modes
@pytest.mark.parametrize(("grid", "window"), [(16, 1), (8, 3), (4, 4)])
def test_no_whole_state_is_written_between_lines(grid: int, window: int, exact: bool) -> None:
    """One slot in the step after each line, and none in any other step."""
    driver = Spy(Setup(grid, window, grid, rows=1, exact=exact), seed=1)
    driver.start(1)
    writes = 0
    while driver.tenants[1].history.position < 5 * grid:
        due = driver.tenants[1].history.position - driver.tenants[1].base >= grid
        driver.step([Work(1, window, driver.rng.randint(1, window))])
        assert driver.written == (Counter([1]) if due else Counter())
        writes += due
    assert writes == driver.tenants[1].base // grid >= 4


@modes
def test_a_run_writes_its_last_line_and_its_exports_only(exact: bool) -> None:
    driver = Spy(Setup(16, 2, 64, rows=1, exact=exact), seed=2)
    driver.start(1)
    driver.step([Work(1, 200, 200)])  # passes 12 lines
    assert driver.written == Counter([1])
    driver.step([Work(1, 100, 100)], exports=[(1, 256)])
    assert driver.written.total() == 2
    driver.step([Work(1, 3, 3)])  # to 303, short of 304
    assert not driver.written


@modes
def test_a_grant_takes_the_fold_and_the_own_slot_keeps_the_line_before(exact: bool) -> None:
    driver = Spy(Setup(4, 1, 8, rows=1, exact=exact), seed=3)
    driver.start(1)
    driver.grant(1, line=8)
    assert driver.tenants[1].grant is not None
    slot = driver.tenants[1].grant[0]
    written = []
    for _ in range(14):
        driver.step([Work(1, 1, 1)])
        written += list(driver.written)
    assert written == [1, slot, 1]  # lines 4, 8, 12
    assert int(driver.pool.cursors.read_slot[1]) == 1


# --- padding ---


@modes
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_padding_writes_nothing_though_its_cursors_ask_for_a_fold(exact: bool, tree: bool) -> None:
    driver = Driver(Setup(4, 3, 4, exact=exact), seed=4)
    driver.start(1)
    driver.step([Work(1, 3, 3)])
    at = driver.pool.cursors
    at.own_slot[0], at.read_slot[0], at.base[0], at.length[0] = 2, 1, 4, 5
    at.grant_slot[0], at.grant_line[0] = 5, 8
    counts = torch.tensor([3, 2, 0, 30])
    step = driver.pool.begin(
        rows=torch.zeros(4, dtype=torch.int64),
        counts=counts,
        offsets=torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0))),
        num_windows=3,
        longest_window=3,
        tree=tree_of([Work(0, int(n)) for n in counts[:3]], 3) if tree else None,
    )
    before = Snapshot(driver.pool)
    outputs, mixed = driver.run_ops(driver.draw(int(counts.sum())), step)
    assert outputs.isnan().all() and mixed.isnan().all()
    if tree:
        driver.pool.compact(step=step, path=torch.tensor([[2, 1, 0]] * 3), accepted=counts)
    committed = driver.pool.commit(step=step, accepted=counts)
    before.assert_unchanged()
    assert not committed.used.any() and not committed.missed.any()


@modes
def test_attention_writes_the_step_s_own_positions_and_padding_none(exact: bool) -> None:
    """Row 2 at position 3 takes two tokens, over a page's edge; lanes of row 0 hold tokens too."""
    pool = kv_pool()
    before = {name: x.clone() for name, x in kv_tensors(pool)}
    for part in pool.layers["attention"]:
        part[4, :3] = 0.5  # row 2's first positions
    step = attention_step(rows=[0, 2, 0], counts=[2, 2, 5], position=[0, 3, 0], windows=2)
    q, k, v = (torch.randn(9, 1, 2, generator=torch.Generator().manual_seed(i)) for i in range(3))
    q[:2] = k[:2] = v[:2] = torch.nan
    out = choose("reference", exact=exact).attention(
        q, k, v, Heads(1.0), pool.layers["attention"], pool.table, step
    )
    assert out[2:4].isfinite().all() and out[:2].isnan().all() and out[4:].isnan().all()
    for name, now in kv_tensors(pool):
        expected = before[name]
        if name != "table":
            expected[4, :3] = 0.5
            fresh = k if name.endswith("keys") else v
            expected[4, 3], expected[5, 0] = fresh[2], fresh[3]
        assert same_bits(now, expected), name


def test_moving_an_accepted_path_touches_its_targets_only() -> None:
    """Node 2 of a window at position 3 is accepted in place 1, which lies on the next page. Row 0 stays."""
    pool = kv_pool()
    for part in pool.layers["attention"]:
        part[1:3] = torch.arange(16.0).reshape(2, 4, 1, 2)
    before = {name: x.clone() for name, x in kv_tensors(pool)}
    step = attention_step(rows=[1, 0], counts=[3, 3], position=[3, 0], windows=2)
    moves = moves_along(step, torch.tensor([[0, 2, 0], [2, 1, 0]]), torch.tensor([2, 3]))
    pool.move(moves.rows, moves.source, moves.target)
    for name, now in kv_tensors(pool):
        expected = before[name]
        if name != "table":
            expected[2, 0] = expected[2, 1].clone()
        assert same_bits(now, expected), name


def test_mapping_pages_writes_their_places_only() -> None:
    """Of several rows in a step, in any order, and of the next step while this one's numbers may be on their way."""
    pool = kv_pool(rows=5)
    pool.table.fill_(-7)
    address, expected = pool.table.data_ptr(), pool.table.clone()
    steps = [[(5, 2, 1 << 20), (1, 0, 3), (1, 1, 4), (3, 2, 9)], [(2, 0, 11)], [(5, 0, 12), (1, 0, 13)]]
    for turn, pages in enumerate(steps):
        pool.map(tuple(PageMap(Row(row), ordinal, Page(page)) for row, ordinal, page in pages), turn)
        for row, ordinal, page in pages:
            expected[row, ordinal] = page
        assert torch.equal(pool.table, expected)
    assert expected[0].tolist() == [-7] * 3 and pool.table.data_ptr() == address


def test_all_pages_of_all_rows_may_be_mapped_at_once() -> None:
    pool = kv_pool(rows=5)
    pool.table.fill_(-7)
    rows, ordinals = pool.table.shape
    places = [(row, ordinal) for row in range(1, rows) for ordinal in range(ordinals)]
    pool.map(tuple(PageMap(Row(r), n, Page(1 + page)) for page, (r, n) in enumerate(places)), turn=0)
    assert pool.table.flatten().tolist() == [-7] * ordinals + [*range(1, 1 + len(places))]


# --- what must not be read ---


@modes
def test_a_cold_row_never_reads_its_slot(exact: bool) -> None:
    """Its slot is NaN, as the driver makes every new slot; the padding slot as its read_slot is as good."""
    driver = Driver(Setup(4, 2, 4, exact=exact), seed=5)
    for row, count in ((1, 2), (2, 9)):
        driver.start(row)
        driver.tenants[row].read = 0
        driver.pool.cursors.read_slot[row] = 0
        driver.step([Work(row, count, count)])
    assert driver.pool.layers["mixer"].temporal is not None
    assert driver.temporal.saved[0].isnan().all() and driver.conv.saved[0].isnan().all()


@modes
def test_a_new_tenant_computes_the_same_bits_after_any_other(exact: bool) -> None:
    """Same tokens in a fresh pool, and where another request left its entries, inputs and states."""

    def serve(leftovers: bool) -> list[Tensor]:
        driver = Driver(Setup(4, 3, 4, rows=1, exact=exact), seed=6)
        driver.start(1)
        for x in (*driver.layer.rings().values(), *driver.layer.saved().values()):
            x.fill_(torch.nan if not leftovers else 3.0)
        results: list[Tensor] = []
        for count in (1, 3, 2, 0, 3, 7, 3, 3):
            step = driver.begin([Work(1, count)], torch.tensor([count]), torch.tensor([0, count]), ())
            results += driver.run_ops(driver.draw(count), step)
            driver.pool.commit(step=step, accepted=step.counts)
        return results

    for fresh, used in zip(serve(False), serve(True), strict=True):
        assert same_bits(fresh, used) and fresh.isfinite().all()


@modes
def test_rows_and_slots_of_others_stay_as_they_are(exact: bool) -> None:
    """Three rows, one of them in each step; the driver's spy allows that one's bytes and no others."""
    driver = Driver(Setup(4, 3, 4, exact=exact), seed=7)
    for row in (1, 2, 3):
        driver.start(row)
        driver.grant(row, line=4)
    for turn in range(24):
        row = 1 + turn % 3
        untouched = [other for other in (1, 2, 3) if other != row]
        before = [ring[untouched].clone() for ring in driver.layer.rings().values()]
        driver.step([Work(row, 3, 3)] if turn % 5 else [Work(row, 6, 6)])
        for ring, old in zip(driver.layer.rings().values(), before, strict=True):
            assert same_bits(ring[untouched], old)
