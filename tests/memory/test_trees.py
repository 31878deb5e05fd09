"""Windows that branch: every node follows the recurrence along its own path, and the accepted one goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.memory.state_pool import moves_along
from holdfast.ops.step import Tree

from .driver import Driver, Setup, Work, tree_of
from .oracle import Shape, path_to
from .spy import Snapshot

GRIDS = [(16, 5, 32), (8, 8, 8), (16, 16, 16), (4, 2, 4), (1, 1, 4)]
grids = pytest.mark.parametrize(("grid", "window", "page"), GRIDS)


def random_tree(rng: random.Random, row: int, nodes: int) -> Work:
    """Any forest whose parents come first, and any path of it accepted, or none."""
    parents = tuple(rng.randint(-1, node - 1) for node in range(nodes))
    return Work(row, nodes, parents=parents, leaf=rng.randint(-1, nodes - 1))


def branching_work(driver: Driver) -> Iterator[Work]:
    """A tree for most rows, sometimes a run beside them, sometimes padding."""
    rng, window = driver.rng, driver.setup.window
    for row in driver.tenants:
        if rng.random() < 0.1:
            count = window + rng.randint(1, 80)
            yield Work(row, count, count)
        elif rng.random() < 0.9:
            yield random_tree(rng, row, rng.choice([window, rng.randint(0, window)]))
    if rng.random() < 0.3:
        yield Work(0, rng.randint(0, window))


def drive_trees(driver: Driver, steps: int) -> None:
    """Trees, and now and then a step of chains."""
    for row in range(1, driver.setup.rows + 1):
        driver.start(row)
    for _ in range(steps):
        for row, tenant in driver.tenants.items():
            if tenant.grant is None:
                driver.grant(row, tenant.base // driver.setup.page * driver.setup.page + driver.setup.page)
        work = list(branching_work(driver))
        if driver.rng.random() < 0.2:
            work = [replace(w, parents=None, leaf=-1, accepted=w.count) for w in work]
        driver.step(work)


@grids
@pytest.mark.parametrize("backend", ["reference", "reference_kv"])
def test_random_trees_equal_the_recurrence(grid: int, window: int, page: int, backend: str) -> None:
    driver = Driver(Setup(grid, window, page, backend=backend), seed=grid + window)
    drive_trees(driver, 25)
    assert driver.folds and driver.published


@pytest.mark.slow
@grids
@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
@pytest.mark.parametrize("decay", ["weak", "mixed"])
def test_random_trees_for_hundreds_of_steps(
    grid: int, window: int, page: int, exact: bool, decay: str
) -> None:
    drive_trees(Driver(Setup(grid, window, page, exact=exact, decay=decay), seed=2), 250)


@grids
def test_trees_in_exact_mode(grid: int, window: int, page: int) -> None:
    drive_trees(Driver(Setup(grid, window, page, exact=True), seed=3), 8)


@grids
def test_trees_over_a_bfloat16_state(grid: int, window: int, page: int) -> None:
    """Nodes beyond a line are computed before the line is rounded; the fold then rounds below them."""
    drive_trees(Driver(Setup(grid, window, page, state_dtype=torch.bfloat16, decay="exactly"), seed=4), 25)


@pytest.mark.parametrize("width", [2, 3, 4, 6])
def test_a_deep_branch_convolves_along_itself(width: int) -> None:
    """Two long branches from one root, interleaved, so that neighbours in memory are never relatives."""
    driver = Driver(Setup(8, 7, 8, shape=Shape(width=width)), seed=5)
    driver.start(1)
    driver.step([Work(1, 2, 2)])
    interleaved = (-1, 0, 0, 1, 2, 3, 4)
    for leaf in (5, 6, 0, -1, 6, 5):
        driver.step([Work(1, 7, parents=interleaved, leaf=leaf)])


def test_a_path_straight_down_moves_nothing_and_neither_does_padding() -> None:
    driver = Driver(Setup(8, 4, 8), seed=6)
    driver.start(1)
    chain = Work(1, 4, parents=(-1, 0, 1, 2))
    step = driver.pool.begin(
        rows=torch.tensor([1, 0]),
        counts=torch.tensor([4, 4]),
        offsets=torch.tensor([0, 4, 8]),
        num_windows=2,
        longest_window=4,
        tree=tree_of([chain, replace(chain, row=0)], 4),
    )
    path, accepted = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]]), torch.tensor([4, 4])
    assert len(moves_along(step, path, accepted).rows) == 0
    before = Snapshot(driver.pool)
    driver.pool.compact(step=step, path=path, accepted=accepted)
    before.assert_unchanged()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data())
def test_sources_are_the_nodes_above(data: st.DataObject) -> None:
    """For each node and each of `width` taps: the ancestor that far up, or how far before the window."""
    nodes, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(nodes))
    tree: Tree = tree_of([Work(1, nodes, parents=parents)], nodes)
    sources = tree.sources(width)[0].tolist()
    for node in range(nodes):
        path = path_to(node, parents)
        before_the_window = list(range(-width, 0))
        assert sources[node] == (before_the_window + path)[-width:]


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.data())
def test_any_trees_equal_the_recurrence(data: st.DataObject) -> None:
    grid = data.draw(st.sampled_from([1, 2, 4, 8]))
    shape = Shape(width=data.draw(st.integers(2, 5)))
    setup = Setup(grid, data.draw(st.integers(1, grid)), grid, rows=2, shape=shape)
    driver = Driver(setup, seed=data.draw(st.integers(0, 9)))
    driver.start(1)
    driver.start(2)
    rng = random.Random(data.draw(st.integers(0, 1000)))
    for _ in range(data.draw(st.integers(1, 10))):
        nodes = data.draw(st.lists(st.integers(0, setup.window), min_size=2, max_size=2))
        driver.step([random_tree(rng, row, n) for row, n in enumerate(nodes, 1)])
