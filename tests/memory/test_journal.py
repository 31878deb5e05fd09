"""checkpoint + journal = the recurrence: every output, fold and published line, whatever the traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from .driver import Driver, Setup, Work
from .oracle import Shape
from .recorder import Recorder
from .spy import same_bits
from .traffic import drive, start_somewhere

GRIDS = [(16, 1, 64), (16, 5, 32), (8, 8, 8), (16, 16, 16), (4, 2, 4), (1, 1, 4)]
SQUARE = Shape(key_heads=2, value_heads=2, key_dim=4, value_dim=4, width=3)
TALL = Shape(key_heads=1, value_heads=3, key_dim=2, value_dim=5, width=2)
SHAPES = [Shape(), SQUARE, TALL]

grids = pytest.mark.parametrize(("grid", "window", "page"), GRIDS)


@grids
@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_mixed_traffic_equals_the_recurrence(grid: int, window: int, page: int, exact: bool) -> None:
    driver = Driver(Setup(grid, window, page, exact=exact), seed=grid * 100 + window)
    drive(driver, 20 if exact else 60)
    assert driver.folds and driver.published


@grids
def test_rings_wrap(grid: int, window: int, page: int) -> None:
    driver = Driver(Setup(grid, window, page, decay="mild", rows=2), seed=1)
    drive(driver, 1, runs=0.0, restarts=0.0)
    while driver.tenants[1].history.position < 10 * driver.setup.limits.journal_capacity:
        drive(driver, 1, runs=0.0, restarts=0.0)


@pytest.mark.slow
@grids
@pytest.mark.parametrize(
    ("decay", "exact", "steps"), [("weak", False, 2000), ("mixed", False, 2000), ("mixed", True, 600)]
)
def test_rings_wrap_for_thousands_of_steps(
    grid: int, window: int, page: int, decay: str, exact: bool, steps: int
) -> None:
    driver = Driver(Setup(grid, window, page, decay=decay, exact=exact, rows=1), seed=2)
    drive(driver, steps, runs=0.002, restarts=0.0)


@pytest.mark.parametrize("decay", ["weak", "strong", "violent", "mild"])
@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_decays_from_hardly_any_to_all(decay: str, exact: bool) -> None:
    driver = Driver(Setup(16, 5, 16, decay=decay, exact=exact), seed=3)
    drive(driver, 12 if exact else 30)


@pytest.mark.parametrize("shape", SHAPES, ids=["grouped", "square", "tall"])
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_either_axis_order(shape: Shape, backend: str, exact: bool) -> None:
    driver = Driver(Setup(8, 4, 16, shape=shape, backend=backend, exact=exact), seed=4)
    drive(driver, 10 if exact else 25)


@grids
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
def test_a_bfloat16_state_is_rounded_at_the_lines_and_nowhere_else(
    grid: int, window: int, page: int, backend: str
) -> None:
    """Inputs whose sums float32 holds exactly: the rounded recurrence and the pool agree in every bit."""
    setup = Setup(grid, window, page, backend=backend, state_dtype=torch.bfloat16, decay="exactly")
    for exact in (False, True):
        driver = Driver(replace(setup, exact=exact), seed=5)
        drive(driver, 10 if exact else 30)


@grids
@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.int8], ids=["bfloat16", "int8"])
def test_a_narrow_state_stays_near_the_rounded_recurrence(
    grid: int, window: int, page: int, state_dtype: torch.dtype
) -> None:
    driver = Driver(Setup(grid, window, page, state_dtype=state_dtype), seed=6)
    drive(driver, 30)


@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_a_window_of_no_tokens_folds_and_publishes(exact: bool) -> None:
    driver = Driver(Setup(4, 4, 4, rows=2, exact=exact), seed=7)
    driver.start(1)
    driver.start(2)
    driver.grant(1, line=4)
    driver.step([Work(1, 4, 4), Work(2, 3, 3)])
    assert not driver.published
    driver.step([Work(1, 0), Work(2, 0)])
    assert [history.position for history in driver.published.values()] == [4]
    assert (driver.tenants[1].base, driver.tenants[2].base) == (4, 0)


@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_every_line_of_a_decode_is_published_and_can_be_resumed(exact: bool) -> None:
    """Windows that cross lines midway, a grant for each line, then a row from every slot left behind."""
    driver = Driver(Setup(8, 5, 8, rows=2, spare_slots=12, exact=exact), seed=8)
    driver.start(1)
    for _ in range(40):
        if driver.tenants[1].grant is None:
            driver.grant(1, driver.tenants[1].base + 8)
        count = driver.rng.randint(0, 5)
        driver.step([Work(1, count, driver.rng.randint(0, count))])
    left_behind = dict(driver.published)
    base = driver.tenants[1].base
    assert sorted(history.position for history in left_behind.values()) == list(range(8, base + 1, 8))
    for slot in left_behind:
        driver.start(2, resume=slot)
        for count in (0, 3, 1, 5, 5, 40, 5):
            driver.step([Work(2, count, count)])


def test_a_grant_that_a_run_jumps_over_is_missed_and_its_slot_untouched() -> None:
    driver = Driver(Setup(4, 2, 4, rows=1), seed=9)
    driver.start(1)
    driver.grant(1, line=4)
    assert driver.step([Work(1, 9, 9)]).missed.tolist() == [True]
    driver.grant(1, line=12)
    assert driver.step([Work(1, 3, 3)]).used.tolist() == [True]
    driver.grant(1, line=12)  # folded already
    committed = driver.step([Work(1, 1, 1)])
    assert committed.missed.tolist() == [True] and committed.used.tolist() == [False]


def test_a_rejected_window_leaves_no_trace() -> None:
    """The same tokens give the same bits, whether or not something else was tried at their place before."""

    def decode(rejections: bool) -> list[torch.Tensor]:
        driver = Driver(Setup(4, 3, 4, rows=1, exact=True), seed=10)
        driver.start(1)
        kept = []
        for _ in range(15):
            if rejections:
                generator_state = driver.draw.generator.get_state()
                driver.step([Work(1, 3, 0)])
                driver.draw.generator.set_state(generator_state)
            driver.step([Work(1, 2, 2)])
            slot = driver.tenants[1].read
            kept.append(driver.temporal.saved[slot].clone())
        return kept

    for plain, tried in zip(decode(False), decode(True), strict=True):
        torch.testing.assert_close(plain, tried, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "state_dtype",
    [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn],
    ids=["float32", "bfloat16", "int8", "float8"],
)
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
def test_in_exact_mode_a_row_that_resumes_and_replays_computes_the_same_bits(
    state_dtype: torch.dtype, backend: str
) -> None:
    """From the checkpoint left behind at a line, the tokens since it in other windows: as if never stopped."""
    driver = Recorder(Setup(8, 5, 8, state_dtype=state_dtype, backend=backend, exact=True, rows=2), seed=11)
    driver.stream = driver.draw(70)
    driver.start(1)
    driver.grant(1, line=24)
    through = driver.absorb(1, [5, 3, 1, 5, 4, 2, 5, 5, 30, 5, 5])
    ((slot, history),) = driver.published.items()
    for sizes in ([5] * 9 + [1], [1] * 8 + [38], [46]):
        driver.start(2, resume=slot)
        for never_stopped, resumed in zip(through, driver.absorb(2, sizes), strict=True):
            assert same_bits(never_stopped[history.position :], resumed)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    grid = draw(st.sampled_from([1, 2, 4, 8, 16]))
    return Setup(
        grid=grid,
        window=draw(st.integers(1, grid)),
        page=grid * draw(st.sampled_from([1, 2, 4])),
        shape=draw(st.sampled_from(SHAPES)),
        backend=draw(st.sampled_from(["reference", "reference_kv"])),
        exact=draw(st.booleans()),
        decay=draw(st.sampled_from(["weak", "mild", "mixed"])),
        rows=draw(st.integers(1, 3)),
    )


@st.composite
def steps_for(draw: st.DrawFn, setup: Setup) -> list[Work]:
    rows = draw(st.lists(st.integers(1, setup.rows), unique=True, max_size=setup.rows))
    padding = [0] * draw(st.integers(0, 2))
    work = []
    for row in draw(st.permutations(rows + padding)):
        if draw(st.integers(0, 9)) == 0:
            count = setup.window + draw(st.integers(1, 140))
            work.append(Work(row, count, count))
        else:
            count = draw(st.integers(0, setup.window))
            work.append(Work(row, count, draw(st.integers(0, count))))
    return work


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.data())
def test_any_traffic_equals_the_recurrence(data: st.DataObject) -> None:
    setup = data.draw(setups())
    driver = Driver(setup, seed=data.draw(st.integers(0, 9)))
    for row in range(1, setup.rows + 1):
        driver.start(row)
    for _ in range(data.draw(st.integers(1, 12))):
        for row in range(1, setup.rows + 1):
            if driver.tenants[row].grant is None and data.draw(st.booleans()):
                driver.grant(row, driver.tenants[row].base // setup.page * setup.page + setup.page)
            if driver.published and data.draw(st.integers(0, 7)) == 0:
                start_somewhere(driver, row)
        driver.step(data.draw(steps_for(setup)))
