"""What a step adds to the time of all: from one step's tokens to the next one's, drafts and idle moments included."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from holdfast.executor.readback import Fetch, Laps, Mark, Tray


class Moment:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def since(self, earlier: Any) -> float:
        return self.seconds - earlier.seconds


def lap(laps: Laps, ended: float, *, begun: float | None = None) -> float:
    marks: Any = None if begun is None else Moment(begun), Moment(ended)
    return laps.lap(*marks)


def test_steps_add_up() -> None:
    """The second is launched before the first has ended, and the third a little after the second."""
    laps = Laps()
    assert lap(laps, 3.0, begun=1.0) == 2.0
    assert lap(laps, 4.5) == 1.5
    assert lap(laps, 7.0) == 2.5, "what was drafted in between, and what the host took, is the third one's"


def test_when_nobody_ran_time_begins_anew() -> None:
    laps = Laps()
    lap(laps, 3.0, begun=1.0)
    assert lap(laps, 101.0, begun=100.0) == 1.0


class Report(Fetch):
    """That is there, or not."""

    def __init__(self, there: bool) -> None:
        self.said = there

    @property
    def there(self) -> bool:
        return self.said


def test_the_device_waits_if_all_that_was_launched_is_done() -> None:
    laps = Laps()
    assert not laps.starved
    for there in (False, True, False):
        assert laps.launched(Report(there)) >= 0.0
        assert laps.starved is there


@pytest.mark.parametrize(
    ("host", "seconds", "brief"), [(0.1, 0.4, True), (0.1, 0.6, False), (0.0, 0.1, False)]
)
def test_a_step_is_brief_that_takes_hardly_longer_than_the_host(
    host: float, seconds: float, brief: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never where nobody knows what the host takes, because nothing is done beside it."""
    laps, now = Laps(), [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    laps.waited()
    now[0] += host
    laps.launched(Report(False))
    assert not laps.brief
    lap(laps, 3.0 + seconds, begun=3.0)
    assert laps.brief is brief


def test_marks_of_a_device_without_a_clock() -> None:
    first, second = Mark(torch.device("cpu")), Mark(torch.device("cpu"))
    before = second.since(first)
    assert 0.0 <= before < 1.0
    second.set()
    assert second.since(first) > before


@pytest.mark.gpu
def test_marks_of_a_gpu() -> None:
    """By its own clock: as long as the work between them, whenever the host looks."""
    x = torch.randn(4096, 4096, device="cuda")
    first = Mark(x.device)
    for _ in range(20):
        x = x @ x * 1e-3
    second = Mark(x.device)
    assert not second.passed
    second.wait()
    assert second.passed and second.since(first) > 1e-3
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10**8)
        second.set()
    assert not second.passed, "it is among the work of the stream that is current"
    torch.cuda.synchronize()
    assert second.passed


@pytest.mark.gpu
def test_a_report_is_as_it_was_when_it_was_taken() -> None:
    """The device may overwrite it with its next step's; and a later step's may be longer."""
    tray, told = Tray(torch.device("cuda")), torch.arange(5, device="cuda")
    tray.take(told + 0, 1).wait()  # so that nothing has to be loaded then
    torch.cuda._sleep(10**8)
    taken = tray.take(told, 4)
    assert not taken.there
    told += 7
    assert taken.wait()[0].tolist() == [0, 1, 2, 3, 4]
    longer = torch.arange(4000, device="cuda")
    assert tray.take(longer, 7).wait()[0].tolist() == list(range(4000))
    assert tray.take(told, 10).wait()[0].tolist() == [7, 8, 9, 10, 11]
