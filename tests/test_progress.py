from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import progress
from holdfast.progress import Progress


class Stderr(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@dataclass
class Clock:
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


Use = Callable[[Stderr | None], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    return lambda stderr: monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))


@pytest.fixture
def terminal(use: Use) -> Stderr:
    stderr = Stderr(terminal=True)
    use(stderr)
    return stderr


def work(clock: Clock, steps: int, seconds: float, show: bool | None = None) -> None:
    with Progress("Working", steps, lambda: f"{bar.done} done", show=show) as bar:
        for _ in range(steps):
            clock.now += seconds
            bar.advance()


def test_short_work_draws_nothing(clock: Clock, terminal: Stderr) -> None:
    work(clock, 10, 0.09)
    assert terminal.getvalue() == ""


def test_long_work_is_drawn_once_it_is_long(clock: Clock, terminal: Stderr) -> None:
    work(clock, 10, 0.3)
    drawn = terminal.getvalue()
    assert drawn.startswith("\rWorking [############..................]  40% 4 done\r")
    assert drawn.endswith("100% 10 done\n") and drawn.count("\n") == 1


def test_it_is_drawn_ten_times_a_second_at_most(clock: Clock, terminal: Stderr) -> None:
    work(clock, 3000, 0.001)
    assert 18 <= terminal.getvalue().count("\r") <= 23


@pytest.mark.parametrize("steps", [1, 20])
def test_no_terminal_no_bar(clock: Clock, use: Use, steps: int) -> None:
    use(stderr := Stderr(terminal=False))
    work(clock, steps, 1.0)
    assert stderr.getvalue() == ""
    work(clock, steps, 0.001, show=True)
    assert stderr.getvalue().endswith(f"100% {steps} done\n")


def test_not_wanted(clock: Clock, terminal: Stderr) -> None:
    work(clock, 10, 1.0, show=False)
    assert terminal.getvalue() == ""


def test_no_stderr_at_all(clock: Clock, use: Use) -> None:
    use(None)
    work(clock, 10, 1.0)


def test_a_shorter_line_leaves_no_rest_of_a_longer_one(clock: Clock, terminal: Stderr) -> None:
    details = iter(["a long detail", "short", "end"])
    with Progress("Working", 3, lambda: next(details), show=True) as bar:
        for _ in range(2):
            clock.now += 1.0
            bar.advance()
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert len(second) == len(first) and second.endswith("short        ") and last.endswith("end  \n")


def test_an_interrupted_bar_ends_its_line(clock: Clock, terminal: Stderr) -> None:
    with pytest.raises(KeyboardInterrupt), Progress("Working", 10, str, show=True) as bar:
        bar.advance()
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith(" 10% \n")


def test_nothing_to_do(clock: Clock, terminal: Stderr) -> None:
    work(clock, 0, 1.0)
    assert terminal.getvalue() == ""


def test_offline_runs_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from tests.random_model import random_model

    from holdfast import LLM, SamplingParams

    llm, params = LLM(random_model(), max_num_seqs=2), SamplingParams(max_tokens=5, ignore_eos=True)
    llm.generate([[1, 2, 3]] * 3, params)
    assert capsys.readouterr().err == ""
    llm.generate([[1, 2, 3]] * 3, params, progress=True)
    drawn = capsys.readouterr().err
    assert "Generating [" in drawn and "100% 3/3 " in drawn and drawn.endswith(" tokens/s\n")
