"""How far a drafter may be behind, and which grants it has to catch up for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from holdfast.config import Limits
from holdfast.executor.backlog import Backlog
from holdfast.executor.inputs import Inputs, uniform_shapes
from holdfast.ids import Row, Slot
from holdfast.ops.transfer import Buffer
from holdfast.params import SamplingParams
from holdfast.plan import Grant, RowStart, RowWork, StepPlan, Window
from holdfast.spec.drafter import Drafter

CPU = torch.device("cpu")
LIMITS = Limits(
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    max_model_len=512,
    vocab_size=8,
    page_size=16,
    num_pages=99,
    num_slots=99,
    fold_every=8,
    max_window=4,
)
BASE, MOST_HELD = 16, LIMITS.fold_every - 1 + LIMITS.max_window


class Patient(Drafter):
    patience, trails = 64, True


@dataclass
class Rows:
    """That started at BASE, and absorb a token each in every step; row n has slot n, and reads 10 + n."""

    count: int
    position: int = BASE
    backlog: Backlog = field(default_factory=lambda: Backlog(Patient(3), LIMITS, Buffer(128, CPU)))
    inputs: Inputs = field(default_factory=lambda: Inputs(LIMITS, CPU, uniform_shapes(LIMITS, (0, 3))))

    def __post_init__(self) -> None:
        starts = (
            RowStart(Row(n), 0, (), Slot(n), Slot(10 + n), BASE, SamplingParams(), 0)
            for n in range(1, 1 + self.count)
        )
        self.backlog.heard(StepPlan(0, starts=tuple(starts)))

    def step(self, *grants: Grant) -> bool:
        """Was there no need to catch up?"""
        work = tuple(RowWork(Row(n), 0, 1, Window()) for n in range(1, 1 + self.count))
        places = dict(positions=(self.position,) * self.count, uncertain=(0,) * self.count)
        plan = StepPlan(self.position, work=work, grants=grants, **places)
        lanes = self.inputs.fill(plan)
        assert self.backlog.may_grow(plan, lanes)
        held = not self.backlog.tokens or self.backlog.holds(plan, lanes)
        if not held:
            self.backlog.clear()
        self.backlog.grow(lanes)
        self.backlog.heard(plan)
        self.position += 1
        return held


@pytest.mark.parametrize(("rows", "lanes", "most"), [(1, 1, 64), (17, 24, 64), (31, 32, 64), (33, 40, 51)])
def test_it_catches_up_when_the_padded_lanes_of_those_that_run_fill_a_step(
    rows: int, lanes: int, most: int
) -> None:
    running = Rows(rows)
    assert all(running.step() for _ in range(most)) and not running.step()
    assert (running.backlog.lanes, running.backlog.longest, running.backlog.passes) == (lanes, most, 1)


def test_a_slot_is_granted_in_a_lull_once_no_row_can_stand_on_its_checkpoint() -> None:
    """Row 1 read slot 11 until it folded beyond BASE."""
    running = Rows(2)
    for _ in range(MOST_HELD):
        assert running.step()
    assert not running.step(Grant(Row(2), 0, Slot(11), 64)), "the lull began on the checkpoint"
    running = Rows(2, BASE + MOST_HELD + 1)
    running.step()
    assert running.step(Grant(Row(2), 0, Slot(11), 64)) and running.backlog.passes == 2
    assert not running.step(Grant(Row(1), 0, Slot(2), 64)), "slot 2 is row 2's own"


def test_a_row_holds_one_grant_and_one_that_it_has_passed_counts_no_more() -> None:
    running = Rows(1)
    running.step(Grant(Row(1), 0, Slot(20), 32))
    assert running.step() and not running.step(Grant(Row(1), 0, Slot(21), 48))
    running.backlog.clear()
    running.position = 48 + MOST_HELD - 1
    running.step()
    assert running.backlog.passes == 2
    running.backlog.clear()
    running.step()
    assert running.backlog.passes == 1 and running.step(Grant(Row(1), 0, Slot(22), 64))
