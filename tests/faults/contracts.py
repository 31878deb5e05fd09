"""Tests that catch faults in what an operation means, in a form that can be run with a fault planted."""

from __future__ import annotations

from tests.memory.case import Setup
from tests.memory.driver import Driver
from tests.memory.test_trees import drive_trees
from tests.memory.traffic import drive


def mixed_traffic() -> None:
    """Windows, rejections, runs, new tenants and padding over a state pool equal the plain recurrence."""
    drive(Driver(Setup(16, 5, 32), seed=1), 25)


def trees() -> None:
    """The same with windows that branch."""
    drive_trees(Driver(Setup(16, 5, 32), seed=1), 12)
