"""Random traffic for the driver: windows, some of them rejected, runs, padding, grants, new tenants."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.config import CHUNK

from .driver import Driver, Work


def drive(driver: Driver, steps: int, *, runs: float = 0.1, restarts: float = 0.02) -> None:
    """`runs` and `restarts` are probabilities, per row and step."""
    for _ in range(steps):
        for row in range(1, driver.setup.rows + 1):
            if row not in driver.tenants or driver.rng.random() < restarts:
                start_somewhere(driver, row)
            if driver.tenants[row].grant is None and driver.rng.random() < 0.7:
                driver.grant(row, next_page(driver, row))
        work = list(random_work(driver, runs))
        driver.step(work, list(random_exports(driver, work)))


def start_somewhere(driver: Driver, row: int) -> None:
    """Cold, or from any slot that was left behind."""
    driver.start(row, driver.rng.choice([None, *sorted(driver.published)]))


def next_page(driver: Driver, row: int) -> int:
    """A page boundary that the row has not folded yet; sometimes one further on, rarely one that is gone."""
    tenant, page = driver.tenants[row], driver.setup.page
    return tenant.base // page * page + page * driver.rng.choice([0, 1, 1, 1, 1, 1, 1, 2])


def random_work(driver: Driver, runs: float) -> Iterator[Work]:
    rng, window = driver.rng, driver.setup.window
    rows = [row for row in driver.tenants if rng.random() < 0.8] + [0] * rng.choice([0, 0, 1, 2])
    for row in rng.sample(rows, len(rows)):
        if rng.random() < runs:
            count = window + rng.randint(1, rng.choice([20, 200]))
            yield Work(row, count, count)
        else:
            count = rng.choice([window, rng.randint(0, window)])
            yield Work(row, count, rng.choice([count, rng.randint(0, count)]))


def random_exports(driver: Driver, work: list[Work]) -> Iterator[tuple[int, int]]:
    """Lines that the runs pass: where the chunk form has a state, or anywhere on the grid in exact mode."""
    every = driver.setup.grid if driver.setup.exact else CHUNK
    for w in work:
        if w.row and w.count > driver.setup.window:
            position = driver.tenants[w.row].history.position
            lines = range(position // every * every + every, position + w.count + 1, every)
            yield from ((w.row, line) for line in lines if driver.rng.random() < 0.4)
