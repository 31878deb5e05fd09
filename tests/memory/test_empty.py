"""A step with no rows and a row with no tokens are valid: every operation takes them, and no byte changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from holdfast.ops.attention.heads import Heads
from holdfast.ops.backend import Ops, choose
from holdfast.ops.step import StateStep

from .driver import Driver, Setup, Work, tree_of
from .kv import attention_step, kv_pool
from .recorder import Recorder
from .spy import Snapshot, kv_tensors, same_bits

modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
backends = pytest.mark.parametrize("backend", ["reference", "reference_kv"])


def begun(driver: Driver, rows: list[int], *, tree: bool = False) -> StateStep:
    """A step in which every row takes no token."""
    return driver.pool.begin(
        rows=torch.tensor(rows, dtype=torch.int64),
        counts=torch.zeros(len(rows), dtype=torch.int64),
        offsets=torch.zeros(len(rows) + 1, dtype=torch.int64),
        num_windows=len(rows),
        longest_window=0,
        tree=tree_of([Work(row, 0) for row in rows], 0) if tree else None,
    )


@modes
@backends
@pytest.mark.parametrize("rows", [[], [1], [0], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_no_tokens_change_no_byte(backend: str, exact: bool, rows: list[int], tree: bool) -> None:
    driver = Driver(Setup(4, 3, 4, backend=backend, exact=exact), seed=1)
    for row, count in ((1, 3), (2, 6)):
        driver.start(row)
        driver.step([Work(row, count, count)])
    step, before = begun(driver, rows, tree=tree), Snapshot(driver.pool)
    outputs, mixed = driver.run_ops(driver.draw(0), step)
    assert outputs.shape == (0, 2, 3) and mixed.shape == (0, 3)
    nothing = torch.zeros(len(rows), dtype=torch.int64)
    if tree:
        driver.pool.compact(step=step, path=torch.zeros(len(rows), 0, dtype=torch.int64), accepted=nothing)
    committed = driver.pool.commit(step=step, accepted=nothing)
    before.assert_unchanged()
    assert committed.position.tolist() == [{0: 0, 1: 3, 2: 6}[row] for row in rows]
    assert not committed.used.any() and not committed.missed.any()


@modes
def test_rows_without_tokens_do_not_disturb_the_others(exact: bool) -> None:
    """The driver checks them all. In exact mode the others' bits are those of a step without the idle."""

    def outputs(*idle: int) -> list[Tensor]:
        driver = Recorder(Setup(4, 3, 4, exact=exact), seed=2)
        driver.stream = driver.draw(30)
        for row in (1, 2, 3):
            driver.start(row)
            driver.absorb(row, [3 + row])
        return driver.absorb(2, [2, 3, 9, 1], idle)

    alone = outputs()
    for company in (outputs(1), outputs(1, 3)):
        for a, b in zip(alone, company, strict=True):
            if exact:
                assert same_bits(a, b)
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@modes
@pytest.mark.parametrize("rows", [[], [1], [0], [1, 0, 2]], ids=str)
def test_attention_without_tokens(exact: bool, rows: list[int]) -> None:
    pool = kv_pool()
    before = {name: x.clone() for name, x in kv_tensors(pool)}
    step = attention_step(rows=rows, counts=[0] * len(rows), position=[2] * len(rows), windows=len(rows))
    empty = torch.zeros(0, 1, 2)
    out = choose("reference", exact=exact).attention(
        empty, empty, empty, Heads(1.0), pool.layers["attention"], pool.table, step
    )
    assert out.shape == (0, 1, 2)
    pool.move(*(torch.zeros(0, dtype=torch.int64) for _ in range(3)))
    pool.map((), turn=0)
    pool.start(())
    assert all(same_bits(now, before[name]) for name, now in kv_tensors(pool))


ROWWISE: dict[str, Callable[[Ops], Tensor]] = {
    "linear": lambda ops: ops.linear(torch.zeros(0, 3), torch.ones(5, 3), torch.ones(5)),
    "rms_norm": lambda ops: ops.rms_norm(torch.zeros(0, 5), torch.ones(5), 1e-6),
    "gated_rms_norm": lambda ops: ops.gated_rms_norm(
        torch.zeros(0, 5), torch.zeros(0, 5), torch.ones(5), 1e-6
    ),
    "l2_norm": lambda ops: ops.l2_norm(torch.zeros(0, 5)),
    "silu": lambda ops: ops.silu(torch.zeros(0, 5)),
    "sigmoid": lambda ops: ops.sigmoid(torch.zeros(0, 5)),
    "softplus": lambda ops: ops.softplus(torch.zeros(0, 5)),
    "log_softmax": lambda ops: ops.log_softmax(torch.zeros(0, 5)),
    "rotate": lambda ops: ops.rotate(torch.zeros(0, 1, 5), torch.zeros(0, 2), torch.zeros(0, 2))[:, 0],
}


@modes
@pytest.mark.parametrize("name", ROWWISE)
def test_an_operation_on_no_tokens_gives_no_tokens(name: str, exact: bool) -> None:
    assert ROWWISE[name](choose("reference", exact=exact)).shape == (0, 5)
