"""What a launched step will report, read when it is asked for: a step late, when steps overlap."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..ids import Row
from ..memory.inspection import Inspection
from ..memory.state_pool import Committed
from ..ops.acceptance.reference import Verified
from ..ops.transfer import parts_of
from ..plan import Grant, RowWork, StepPlan, StepResult
from ..request import TokenLogprob
from .inputs import Lanes
from .prompt_scores import PromptScores
from .sampler import Chosen

Numbers = NDArray[np.int64]


class Mark:
    """A moment among the device's work. By the device's own clock, if it has one: the host may look late, and would
    then take one step for longer and the next for shorter than they are."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._index = torch.cuda.current_device() if device.index is None else device.index
        self.set()

    def set(self) -> None:
        """Now, and no longer when it was."""
        if self._event is not None:
            self._event.record(_stream(torch._C._cuda_getCurrentRawStream(self._index), self._index))
        self._time = time.perf_counter()

    @property
    def passed(self) -> bool:
        return self._event is not None and self._event.query()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Mark) -> float:
        """Seconds. Both have passed."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return earlier._event.elapsed_time(self._event) / 1e3


@cache
def _stream(handle: int, index: int) -> torch.cuda.Stream:
    """The one that is current, by its handle: torch takes longer to make an object of it than to use it."""
    stream = torch.cuda.current_stream(index)
    assert stream.cuda_stream == handle
    return stream


class Fetch:
    """Tensors on their way from the device to the host: later steps may overwrite them there."""

    def __init__(self, *tensors: Tensor) -> None:
        self._host = tensors
        if tensors and tensors[0].is_cuda:
            self._host = tuple(torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors)
            for host, there in zip(self._host, tensors, strict=True):
                host.copy_(there, non_blocking=True)
        self.done = Mark(tensors[0].device if tensors else torch.device("cpu"))

    @property
    def there(self) -> bool:
        return self.done.passed

    def wait(self) -> tuple[Tensor, ...]:
        self.done.wait()
        return self._host


TRAYS = 4
"""With three steps in flight, the time of the oldest is counted from the one before it."""
BRIEF = 5.0
"""Times what the host takes for it: what a step takes at most that is called brief."""


class Tray(Fetch):
    """For the report of one step after another: the same memory of the host, the same mark. So it is for steps that
    nobody asks about once TRAYS more were launched."""

    step = -1
    """Whose report it holds."""

    def __init__(self, device: torch.device) -> None:
        self._size, self._parts = 0, parts_of()
        self.done = Mark(device)

    def take(self, told: Tensor, step: int) -> Tray:
        self._host, self.step = (told,), step
        if told.is_cuda:
            if (size := told.numel()) > self._size:
                self._size = 2 * size
                self._parts = parts_of(torch.empty(self._size, dtype=told.dtype, pin_memory=True))
            [host] = self._host = self._parts(size)
            host.copy_(told, non_blocking=True)
        self.done.set()
        return self


def report(committed: Committed, verified: Verified, chosen: Tensor, *further: Tensor) -> Tensor:
    """All that a step tells, end to end: four numbers of each lane, two of each that chooses, what was chosen, and
    what others want to be told of."""
    lanes = (committed.position, committed.base, committed.used, committed.missed)
    return torch.cat((*lanes, verified.accepted, verified.proposed, chosen, *further))


class Laps:
    """What each step adds to the time that all steps take: since the step before, or since its own beginning if
    nobody was running by then. To make the drafts that it verifies is part of it."""

    def __init__(self) -> None:
        self._before: Mark | None = None
        self._waited = time.perf_counter()
        self._host = self._seconds = 0.0  # of the last step
        self._newest: Fetch | None = None  # of those that were launched

    def waited(self) -> None:
        """The host has, for a step, and goes on."""
        self._waited = time.perf_counter()

    @property
    def starved(self) -> bool:
        """The device has done all that was launched."""
        return self._newest is not None and self._newest.there

    def launched(self, report: Fetch) -> float:
        """Seconds since the host last waited: what it takes for each step, beside the device."""
        self._newest, self._host = report, time.perf_counter() - self._waited
        return self._host

    def lap(self, begun: Mark | None, ended: Mark) -> float:
        """begun: of a step before which nobody was running"""
        before = begun or self._before
        self._before = ended
        self._seconds = ended.since(before) if before else 0.0
        return self._seconds

    @property
    def brief(self) -> bool:
        """Steps take hardly longer than the host for them, so that the device waits whenever it takes longer."""
        return 0.0 < self._seconds < BRIEF * self._host


class LaneChose(NamedTuple):
    work: RowWork
    tokens: Sequence[int]
    drafts: Sequence[int]
    """That were made to follow them, and what each follows: 0 is the last of the tokens."""
    parents: Sequence[int]


@dataclass(frozen=True)
class InFlight:
    plan: StepPlan
    lanes: Lanes
    report: Fetch
    chosen: Chosen
    prompt_scores: PromptScores | None
    grants: dict[int, Grant]
    """What the device held when the step was launched, by row."""
    begun: Mark | None
    """If nobody was running. It ends when its report is done: what is drafted then belongs to the next step."""
    laps: Laps
    host_seconds: float = 0.0
    """To prepare and launch it, beside the device,"""
    starved: bool = False
    """which waited for it."""
    plain: bool = False
    """Every row has one token, nobody asked for more, and the next one may be launched before this one's report."""
    inspection: Inspection | None = None
    drafts: Fetch | None = None
    """Made for the next step, where the host must know them: tokens, and parents if they branch."""
    failed: frozenset[Row] = frozenset()
    """Rows whose answers lost their form."""

    def result(self) -> StepResult:
        """Waits for the step."""
        position, base, used, missed, accepted, proposed, tokens = self._told()
        self.laps.waited()
        kept, made = self._kept(accepted, proposed, tokens)
        work = self.lanes.work
        return StepResult(
            step=self.plan.step,
            work=work,
            positions=position[: len(work)].tolist(),  # lanes without work are padding
            bases=base[: len(work)].tolist(),
            tokens=kept,
            proposed=made,
            logprobs=self._by_row(self._logprobs(kept)) if self.chosen.logprobs else {},
            prompt_logprobs=self._by_row(self.prompt_scores.read()) if self.prompt_scores else {},
            failed=self.failed,
            used=self._grants(used) + self.lanes.exports,
            missed=self._grants(missed) + self.lanes.missed_exports,
            seconds=self.laps.lap(self.begun, self.report.done),
            host_seconds=self.host_seconds,
            starved=self.starved,
            findings=self.inspection.findings() if self.inspection else (),
        )

    def chosen_tokens(self) -> Iterator[LaneChose]:
        """Of each lane that chooses. Waits for the step."""
        *_, accepted, _, tokens = (part.tolist() for part in self._told())
        drafts, *parents = (part.tolist() for part in self.drafts.wait()) if self.drafts else ([],)
        for lane, begin, i in self._choosers():
            yield LaneChose(
                self.lanes.work[lane],
                tokens[begin : begin + accepted[i] + 1],
                drafts[i] if drafts else (),
                parents[0][i] if parents else range(len(drafts[i]) if drafts else 0),
            )

    def _told(self) -> tuple[Numbers, ...]:
        """The parts of the report. Few steps need all of them as lists."""
        if isinstance(self.report, Tray) and self.report.step != self.plan.step:
            raise RuntimeError(f"the report of step {self.plan.step} was overwritten by {self.report.step}'s")
        [told] = self.report.wait()
        numbers = told.numpy()
        return tuple([numbers[part] for part in self.lanes.report])

    def _choosers(self) -> Iterator[tuple[int, int, int]]:
        """Lanes that choose, which choice is the first of each, and which of the report's lanes they are."""
        choices = self.lanes.choices
        at = choices.choosers if self.lanes.uniform else range(len(choices.choosers))
        return zip(choices.choosers, choices.begins, at, strict=True)

    def _kept(
        self, accepted: Numbers, proposed: Numbers, tokens: Numbers
    ) -> tuple[list[tuple[int, ...]], list[int]]:
        """Of each lane: its tokens, and how many drafts had been made."""
        choices, lanes = self.lanes.choices, len(self.lanes.work)
        chosen, count, proposals = tuple(tokens.tolist()), accepted.tolist(), proposed.tolist()
        if len(choices.choosers) == lanes:  # as most steps
            ends = zip(choices.begins, count, strict=False)
            return [chosen[begin : begin + more + 1] for begin, more in ends], proposals[:lanes]
        kept: list[tuple[int, ...]] = [()] * lanes
        made = [0] * lanes
        for lane, begin, i in self._choosers():
            kept[lane], made[lane] = chosen[begin : begin + count[i] + 1], proposals[i]
        return kept, made

    def _logprobs(self, kept: list[tuple[int, ...]]) -> dict[int, tuple[TokenLogprob, ...]]:
        """By lane, of those that ask for some."""
        assert self.chosen.logprobs is not None
        scored, begins = self.chosen.logprobs.read(), self.lanes.choices.begins
        return {
            lane: tuple(logprob.best(wanted) for logprob in scored[begin : begin + len(kept[lane])])
            for lane, begin in zip(self.lanes.choices.choosers, begins, strict=True)
            if (wanted := self.chosen.wanted.get(lane)) is not None
        }

    def _by_row(
        self, by_lane: Mapping[int, tuple[TokenLogprob, ...]]
    ) -> Mapping[Row, tuple[TokenLogprob, ...]]:
        return {self.lanes.work[lane].row: scored for lane, scored in by_lane.items()}

    def _grants(self, flags: Numbers) -> tuple[Grant, ...]:
        if not self.grants:
            return ()
        rows = (self.lanes.work[lane].row for lane in flags[: len(self.lanes.work)].nonzero()[0])
        return tuple(self.grants[row] for row in rows if row in self.grants)
