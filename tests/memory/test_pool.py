"""The pool's own part, number by number: what it allocates, where lanes stand, how cursors move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.config import Limits
from holdfast.ids import Row, Slot
from holdfast.memory.spec import ConvSpec, StateSpec, TensorSpec
from holdfast.memory.state_pool import Cursors, LayerState, StatePool, moves_along
from holdfast.ops.step import StateStep
from holdfast.params import SamplingParams
from holdfast.plan import Grant, RowStart

GRID, WINDOW, ROWS, SLOTS = 4, 2, 5, 7
LIMITS = Limits(
    max_num_seqs=ROWS,
    max_num_batched_tokens=64,
    max_model_len=64,
    vocab_size=2,
    page_size=8,
    num_pages=8,
    num_slots=SLOTS,
    fold_every=GRID,
    max_window=WINDOW,
)
SPEC = StateSpec(
    conv={"q": ConvSpec(3, 4, torch.float32), "k": ConvSpec(5, 2, torch.bfloat16)},
    temporal=TensorSpec({"head": 2, "value": 3, "key": 4}, torch.float64, order=("key", "head", "value")),
    entry={"k": TensorSpec({"key": 4}, torch.float16), "u": TensorSpec({"value": 3}, torch.float32)},
)
ONLY_CONV = StateSpec(conv={"x": ConvSpec(2, 3, torch.float32)})
CPU = torch.device("cpu")


@pytest.fixture
def pool() -> StatePool:
    return StatePool({"mixer": SPEC, "short": ONLY_CONV}, LIMITS, CPU)


def start(row: int, own: int, read: int = 0, base: int = 0) -> RowStart:
    return RowStart(Row(row), 1, (1,), Slot(own), Slot(read), base, SamplingParams(), 0)


def grant(row: int, slot: int, line: int) -> Grant:
    return Grant(Row(row), 1, Slot(slot), line)


def place(pool: StatePool, row: int, **cursors: int) -> None:
    for name, value in cursors.items():
        getattr(pool.cursors, name)[row] = value


def of(pool: StatePool, row: int) -> dict[str, int]:
    return {name: int(getattr(pool.cursors, name)[row]) for name in Cursors.__dataclass_fields__}


def begin(pool: StatePool, rows: list[int], counts: list[int], windows: int) -> StateStep:
    offsets = [sum(counts[:lane]) for lane in range(len(counts) + 1)]
    return pool.begin(
        rows=torch.tensor(rows),
        counts=torch.tensor(counts),
        offsets=torch.tensor(offsets),
        num_windows=windows,
        longest_window=max([*counts[:windows], 0]),
    )


# --- bytes ---


def test_pools_have_a_place_for_every_slot_and_row_and_for_padding(pool: StatePool) -> None:
    layer = pool.layers["mixer"]
    slots, rows = SLOTS + 1, ROWS + 1
    journal = GRID - 1 + 2 * WINDOW
    assert layer.temporal is not None
    expected = {
        "conv.q": ((slots, 3, 3), torch.float32),
        "conv.k": ((slots, 1, 5), torch.bfloat16),
        "temporal": ((slots, 4, 2, 3), torch.float64),  # as stored, not as named
    }
    assert {name: (tuple(t.shape), t.dtype) for name, t in layer.saved().items()} == expected
    expected = {
        "conv.q": ((rows, 3 + 2 * WINDOW, 3), torch.float32),
        "conv.k": ((rows, 1 + 2 * WINDOW, 5), torch.bfloat16),
        "k": ((rows, journal, 4), torch.float16),
        "u": ((rows, journal, 3), torch.float32),
    }
    assert {name: (tuple(t.shape), t.dtype) for name, t in layer.rings().items()} == expected
    assert (
        layer.conv["q"].saved is layer.saved()["conv.q"] and layer.conv["k"].ring is layer.rings()["conv.k"]
    )
    assert (
        layer.temporal.saved is layer.saved()["temporal"]
        and layer.temporal.journal["u"] is layer.rings()["u"]
    )


def test_a_layer_without_a_temporal_state_has_none(pool: StatePool) -> None:
    layer = pool.layers["short"]
    assert layer.temporal is None
    assert list(layer.saved()) == list(layer.rings()) == ["conv.x"]
    assert LayerState() == LayerState(conv={}, temporal=None)


def test_capacities_are_those_of_the_rings(pool: StatePool) -> None:
    conv = {"conv.q": 3 + 2 * WINDOW, "conv.k": 1 + 2 * WINDOW}
    assert pool.layers["mixer"].capacities() == {**conv, "temporal": GRID - 1 + 2 * WINDOW}
    assert pool.layers["short"].capacities() == {"conv.x": 2 + 2 * WINDOW}


def test_everything_begins_as_zeros_on_its_device() -> None:
    meta = StatePool({"mixer": SPEC}, LIMITS, torch.device("meta"))
    pool = StatePool({"mixer": SPEC}, LIMITS, CPU)
    for made, device in ((meta, "meta"), (pool, "cpu")):
        tensors = [*made.layers["mixer"].saved().values(), *made.layers["mixer"].rings().values()]
        tensors += [getattr(made.cursors, name) for name in Cursors.__dataclass_fields__]
        assert {t.device.type for t in tensors} == {device}
    assert not any(bool(t.any()) for t in [*pool.layers["mixer"].saved().values()])
    for name in Cursors.__dataclass_fields__:
        cursor = getattr(pool.cursors, name)
        assert cursor.dtype == torch.int64 and cursor.tolist() == [0] * (ROWS + 1)
    assert pool.grid == GRID


def test_bytes_are_those_that_the_specs_declare(pool: StatePool) -> None:
    specs = (SPEC, ONLY_CONV)
    assert pool.slot_bytes == sum(spec.slot_bytes() for spec in specs) * (SLOTS + 1)
    journal = LIMITS.journal_capacity
    assert pool.row_bytes == sum(spec.row_bytes(journal, WINDOW) for spec in specs) * (ROWS + 1)


# --- what the plan says ---


def test_a_start_sets_every_cursor_of_its_row_and_no_other(pool: StatePool) -> None:
    for row in range(ROWS + 1):
        place(pool, row, own_slot=9, read_slot=8, base=16, length=3, grant_slot=7, grant_line=24)
    before = of(pool, 3)
    pool.start((start(2, own=5, read=6, base=12), start(4, own=1)))
    assert of(pool, 2) == dict(own_slot=5, read_slot=6, base=12, length=0, grant_slot=0, grant_line=0)
    assert of(pool, 4) == dict(own_slot=1, read_slot=0, base=0, length=0, grant_slot=0, grant_line=0)
    assert [of(pool, row) for row in (0, 1, 3, 5)] == [before] * 4


def test_a_grant_sets_slot_and_line(pool: StatePool) -> None:
    pool.grant((grant(2, slot=5, line=8), grant(3, slot=6, line=16)), turn=0)
    assert [of(pool, row)["grant_slot"] for row in range(4)] == [0, 0, 5, 6]
    assert [of(pool, row)["grant_line"] for row in range(4)] == [0, 0, 8, 16]


def test_a_grant_is_for_layers_that_are_behind_too_and_nothing_else_is_written(pool: StatePool) -> None:
    for at in (pool.cursors, pool.trailing):
        for number, cursor in enumerate(vars(at).values()):
            cursor.fill_(100 + number)
    pool.grant((grant(2, slot=5, line=8),), turn=1)
    pool.grant((grant(4, slot=7, line=32), grant(1, slot=6, line=16)), turn=2)
    slots, lines = [104] * (ROWS + 1), [105] * (ROWS + 1)
    slots[1], slots[2], slots[4] = 6, 5, 7
    lines[1], lines[2], lines[4] = 16, 8, 32
    for at in (pool.cursors, pool.trailing):
        *others, granted, reached = (cursor.tolist() for cursor in vars(at).values())
        assert (granted, reached) == (slots, lines)
        assert others == [[100 + number] * (ROWS + 1) for number in range(4)]


def test_layers_that_fall_behind_do_so_where_the_others_stand(pool: StatePool) -> None:
    for row in range(ROWS + 1):
        place(pool, row, own_slot=row, read_slot=9, base=16, length=row, grant_slot=7, grant_line=24)
    pool.trail()
    stood = {name: cursor.tolist() for name, cursor in vars(pool.trailing).items()}
    assert stood == {name: cursor.tolist() for name, cursor in vars(pool.cursors).items()}
    assert stood["own_slot"] == stood["length"] == [*range(ROWS + 1)]
    pool.cursors.length.add_(1)
    assert pool.trailing.length.tolist() == stood["length"], "from then on they stand by themselves"


@pytest.mark.parametrize("rows", [1, 2, 63, 64])
def test_every_cursor_begins_where_kernels_expect_it(rows: int) -> None:
    pool = StatePool({}, replace(LIMITS, max_num_seqs=rows), CPU)
    held = [*vars(pool.cursors).values(), *vars(pool.trailing).values()]
    begins = {cursor.storage_offset() * cursor.element_size() % 16 for cursor in held}
    assert begins == {0} and all(cursor.is_contiguous() and len(cursor) == rows + 1 for cursor in held)


# --- one step ---


def test_a_window_folds_a_whole_line_and_no_less(pool: StatePool) -> None:
    for row, length in ((1, 3), (2, 4), (3, 5), (4, 0)):
        place(pool, row, own_slot=row, read_slot=row + 1, base=8, length=length)
    step = begin(pool, [1, 2, 3, 4], [2, 2, 1, 2], windows=4)
    assert step.base.tolist() == [8, 8, 8, 8]
    assert step.position.tolist() == [11, 12, 13, 8]
    assert step.end_base.tolist() == [
        8,
        12,
        12,
        8,
    ]  # a line that the window itself passes is folded next time
    assert step.read_slot.tolist() == [2, 3, 4, 5]
    assert step.write_slot.tolist() == [1, 2, 3, 4]


def test_a_run_folds_to_its_last_line(pool: StatePool) -> None:
    for row, length in ((1, 3), (2, 0), (3, 0), (4, 1)):
        place(pool, row, own_slot=row, base=8, length=length)
    step = begin(pool, [4, 1, 2, 3], [1, 9, 4, 3], windows=1)
    assert step.position.tolist() == [9, 11, 8, 8]
    assert step.end_base.tolist() == [8, 20, 12, 8]
    assert step.num_windows == 1 and step.longest_window == 1


def test_a_step_is_made_where_its_lanes_are() -> None:
    device = torch.device("meta")
    lanes = torch.zeros(2, dtype=torch.int64, device=device)
    step = StatePool({}, LIMITS, device).begin(
        rows=lanes, counts=lanes, offsets=lanes, num_windows=1, longest_window=1
    )
    assert step.end_base.device == step.write_slot.device == device


def test_padding_folds_nothing_whatever_its_cursors_say(pool: StatePool) -> None:
    place(pool, 0, own_slot=3, read_slot=2, base=4, length=9)
    step = begin(pool, [0, 0], [2, 9], windows=1)
    assert step.end_base.tolist() == step.base.tolist() == [4, 4]


def test_a_fold_goes_to_the_slot_granted_for_its_line(pool: StatePool) -> None:
    grants = {1: (5, 12), 2: (6, 16), 3: (7, 8), 4: (1, 12)}  # the last has the first of all slots
    for row, (slot, line) in grants.items():
        place(pool, row, own_slot=row + 1, base=8, length=4, grant_slot=slot, grant_line=line)
    place(pool, 5, own_slot=6, base=0, length=4)
    step = begin(pool, [1, 2, 3, 4, 5], [1, 1, 1, 1, 1], windows=5)
    assert step.end_base.tolist() == [12, 12, 12, 12, 4]
    assert step.write_slot.tolist() == [5, 3, 4, 1, 6]
    pool.commit(step=step, accepted=step.counts)
    assert [of(pool, row)["grant_slot"] for row in range(1, 6)] == [0, 6, 0, 0, 0]


def test_a_row_without_a_grant_at_line_zero_folds_to_its_own_slot(pool: StatePool) -> None:
    """Slot 0 and line 0 mean that there is none, though the row stands at line 0."""
    place(pool, 1, own_slot=3)
    step = begin(pool, [1], [1], windows=1)
    assert step.write_slot.tolist() == [3]
    committed = pool.commit(step=step, accepted=torch.tensor([1]))
    assert not committed.used.any() and not committed.missed.any()


def test_a_step_carries_what_it_was_given(pool: StatePool) -> None:
    rows, counts, offsets = torch.tensor([2, 1]), torch.tensor([1, 5]), torch.tensor([0, 1, 6])
    exports, tree = (object(),), object()
    step = pool.begin(
        rows=rows,
        counts=counts,
        offsets=offsets,
        num_windows=1,
        longest_window=2,
        exports=exports,  # type: ignore[arg-type]
        tree=tree,  # type: ignore[arg-type]
    )
    assert step.rows is rows and step.counts is counts and step.offsets is offsets
    assert step.exports is exports and step.tree is tree
    assert (step.num_windows, step.longest_window, step.grid) == (1, 2, GRID)
    plain = begin(pool, [1], [1], windows=1)
    assert plain.exports == () and plain.tree is None


def test_a_commit_moves_the_cursors_by_what_was_accepted(pool: StatePool) -> None:
    for row, length in ((1, 3), (2, 4), (3, 0)):
        place(pool, row, own_slot=row, read_slot=6, base=8, length=length)
    step = begin(pool, [1, 2, 3], [2, 2, 7], windows=2)
    committed = pool.commit(step=step, accepted=torch.tensor([1, 0, 7]))
    assert committed.position.tolist() == [12, 12, 15]
    assert committed.base.tolist() == [8, 12, 12]
    kept = dict(grant_slot=0, grant_line=0)
    assert of(pool, 1) == dict(own_slot=1, read_slot=6, base=8, length=4, **kept)
    assert of(pool, 2) == dict(own_slot=2, read_slot=2, base=12, length=0, **kept)
    assert of(pool, 3) == dict(own_slot=3, read_slot=3, base=12, length=3, **kept)
    assert not committed.used.any() and not committed.missed.any()


def test_a_commit_leaves_padding_alone(pool: StatePool) -> None:
    place(pool, 0, own_slot=3, read_slot=2, base=4, length=9, grant_slot=5, grant_line=4)
    before = of(pool, 0)
    place(pool, 2, own_slot=2, base=0, length=1)
    step = begin(pool, [0, 2, 0], [2, 1, 9], windows=2)
    committed = pool.commit(step=step, accepted=torch.tensor([2, 1, 9]))
    assert of(pool, 0) == before
    assert committed.position.tolist() == [13, 2, 13], "padding advances by nothing"
    assert of(pool, 2) == dict(own_slot=2, read_slot=0, base=0, length=2, grant_slot=0, grant_line=0)


def test_a_grant_is_used_by_its_line_missed_by_a_later_one_and_kept_before(pool: StatePool) -> None:
    cases = {1: (4, 12), 2: (4, 16), 3: (0, 12), 4: (0, 16), 5: (0, 8)}  # row: length, line
    for row, (length, line) in cases.items():
        place(pool, row, own_slot=row, base=8, length=length, grant_slot=7, grant_line=line)
    # rows 1 and 2 are windows, which fold to 12; the others are runs: 3 and 4 fold to 16, 5 comes to no line
    step = begin(pool, [1, 2, 3, 4, 5], [1, 1, 9, 9, 3], windows=2)
    assert step.end_base.tolist() == [12, 12, 16, 16, 8]
    committed = pool.commit(step=step, accepted=step.counts)
    assert committed.used.tolist() == [True, False, False, True, False]
    assert committed.missed.tolist() == [False, False, True, False, True]
    grants = {row: (of(pool, row)["grant_slot"], of(pool, row)["grant_line"]) for row in cases}
    assert grants == {1: (0, 0), 2: (7, 16), 3: (0, 0), 4: (0, 0), 5: (0, 0)}
    assert [of(pool, row)["read_slot"] for row in cases] == [7, 2, 3, 7, 0]


# --- trees ---


def branched(pool: StatePool) -> tuple[StateStep, Tensor, Tensor]:
    """Three windows of a branching step, one of them padding, and a run."""
    for row in (1, 2, 3):
        place(pool, row, own_slot=row, base=8, length=row)
    step = begin(pool, [1, 0, 2, 3], [2, 2, 2, 9], windows=3)
    path = torch.tensor([[1, 0], [1, 0], [0, 1]])
    return step, path, torch.tensor([1, 1, 2, 9])


def test_only_accepted_nodes_that_are_out_of_place_move(pool: StatePool) -> None:
    step, path, accepted = branched(pool)
    moves = moves_along(step, path, accepted)
    assert (moves.rows.tolist(), moves.source.tolist(), moves.target.tolist()) == ([1], [10], [9])
    moves = moves_along(step, torch.tensor([[1, 3], [0, 1], [2, 3]]), torch.tensor([2, 2, 2, 9]))
    assert moves.rows.tolist() == [1, 1, 2, 2]
    assert moves.source.tolist() == [10, 12, 12, 13]
    assert moves.target.tolist() == [9, 10, 10, 11]


def test_compacting_moves_the_entries_of_every_ring(pool: StatePool) -> None:
    step, path, accepted = branched(pool)
    rings = [ring for layer in pool.layers.values() for ring in layer.rings().values()]
    for ring in rings:
        ring.copy_(torch.arange(ring.numel()).view(ring.shape).to(ring.dtype))
    before = [ring.clone() for ring in rings]
    pool.compact(step=step, path=path, accepted=accepted)
    for ring, old in zip(rings, before, strict=True):
        size = ring.shape[1]
        old[1, 9 % size] = old[1, 10 % size]
        assert torch.equal(ring, old)
