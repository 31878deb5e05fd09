"""What a step adds to the time of all: from one step's tokens to the next one's, drafts and idle moments included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.executor.readback import Laps, Mark


class Moment:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def since(self, earlier: Any) -> float:
        return self.seconds - earlier.seconds


def lap(laps: Laps, begun: float, ended: float, *, alone: bool = False) -> float:
    marks: Any = Moment(begun), Moment(ended)
    return laps.lap(*marks, alone=alone)


def test_steps_add_up() -> None:
    """The second is launched before the first has ended, and the third a little after the second."""
    laps = Laps()
    assert lap(laps, 1.0, 3.0, alone=True) == 2.0
    assert lap(laps, 2.0, 4.5) == 1.5
    assert lap(laps, 5.0, 7.0) == 2.5, (
        "what was drafted in between, and what the host took, is the third one's"
    )


def test_when_nobody_ran_time_begins_anew() -> None:
    laps = Laps()
    lap(laps, 1.0, 3.0, alone=True)
    assert lap(laps, 100.0, 101.0, alone=True) == 1.0
    assert lap(Laps(), 100.0, 101.0) == 1.0


def test_if_the_device_was_done_before_the_host_asked_it_may_wait_in_the_next_step() -> None:
    laps = Laps()
    starved = [laps.waited(idle=idle) for idle in (False, True, True, False)]
    assert starved == [False, False, True, True] and laps.launched() >= 0.0


def test_marks_of_a_device_without_a_clock() -> None:
    first, second = Mark(torch.device("cpu")), Mark(torch.device("cpu"))
    assert 0.0 <= second.since(first) < 1.0


@pytest.mark.gpu
def test_marks_of_a_gpu() -> None:
    """By its own clock: as long as the work between them, whenever the host looks."""
    x = torch.randn(4096, 4096, device="cuda")
    first = Mark(x.device)
    for _ in range(20):
        x = x @ x * 1e-3
    second = Mark(x.device)
    torch.cuda.synchronize()
    assert second.since(first) > 1e-3
