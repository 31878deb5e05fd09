"""Requests on a clock that replays what an H200 took for holdfast-small's steps, and along its answers, where drafts
are accepted as those of its drafters are.

`data/steps_h200.json`, by drafter:
accepted  of each of 64 answers, for every position: how many of seven drafts are accepted if a window begins there
few       microseconds of steps with fewer requests, while they end
and by batch, microseconds:
steady    of steps by the drafts that they verify, as they followed one another, in blocks of 48
first     of the step after a prompt's
turns     what a step takes more that resumes drafting after a lull, is the first to verify then, is the first or the
          second without drafts after that, or verifies another number than the one before it

It is tidier than the machine was. Only blocks whose median is within 6% of the quietest are kept. EAGLE-3 was
measured in a slow hour: its steps without drafts are those of `mtp`, and what took 1.3 times its median is left out.
`turns` are of an earlier recording, times 0.3, because they were hardly seen in this one. Of all drafters but `mtp`
one answer was not recorded, and another stands in its place. The policy's constants were chosen on this clock.

`SharedClock` is of two CPU cores, which are device and host in one.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.ids import Row, Slot
from holdfast.params import SamplingParams
from holdfast.plan import RowStart, RowWork, StepPlan, StepResult, Window
from holdfast.scheduler.depth import Depth

MEASURED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "steps_h200.json").read_text()
)
DEPTHS = (0, 1, 3, 5, 7)
BATCHES = (1, 16, 64)
ANSWER = 384
TEXTS = 16
"""That a batch of one answers, one after the other."""
BLOCK = 48
SLOW = (2.4, 1.6, 1.3)
"""Times as long, the first steps of a kind that there ever are."""


@dataclass
class Clock:
    drafter: str
    batch: int
    chance: random.Random
    waits: float = 0.0
    """Microseconds more, for the host, when drafts are made again or no longer."""
    starved: bool = False
    """So it was in the last step."""
    answer: int = ANSWER
    last: float = 0.0
    """Seconds of the last step."""
    _walks: dict[int, tuple[int, int]] = field(default_factory=dict)
    _verified: tuple[int, int] = (0, 0)
    """Of the last two steps, the newest first."""
    _proposed: int = 0
    _since_prompt: int = 0
    _seen: Counter[tuple[int, int]] = field(default_factory=Counter)

    def prompt(self) -> None:
        self._since_prompt, self._verified, self._proposed = 0, (0, 0), 0

    def seconds(self, rows: int, verified: int, propose: int) -> float:
        table = MEASURED[self.drafter][str(self.batch)]
        kind = min(depth for depth in DEPTHS if depth >= verified)
        if rows == self.batch:
            took = self._walk(kind, table["steady"][str(kind)])
        else:
            took = self._few(rows, kind) * self.chance.lognormvariate(0, 0.02)
        shape = (1 << (rows - 1).bit_length(), kind)
        took *= SLOW[self._seen[shape]] if self._seen[shape] < len(SLOW) else 1
        self._seen[shape] += 1
        last, before = self._verified
        turn = None
        if self._since_prompt == 0 and rows == self.batch:
            took = table["first"]
        elif not verified and propose and not self._proposed:
            turn = "lull"
        elif verified and not last:
            turn = "first"
        elif not verified and last:
            turn = "back"
        elif not verified and before:
            turn = "back2"
        elif verified != last:
            turn = "other"
        self._verified, self._proposed = (verified, last), propose
        self._since_prompt += 1
        self.starved = turn is not None and self.waits > 0
        self.last = 1e-6 * (took + (table["turns"][turn] + self.waits if turn else 0))
        return self.last

    def _walk(self, kind: int, times: list[int]) -> float:
        """Along a block as it was, then along another."""
        at, left = self._walks.get(kind, (0, 0))
        if not left or at >= len(times):
            at, left = BLOCK * self.chance.randrange(max(1, len(times) // BLOCK)), BLOCK
        self._walks[kind] = at + 1, left - 1
        return times[at]

    def _few(self, rows: int, kind: int) -> float:
        known = {int(n): t for n, t in MEASURED[self.drafter]["few"].items()}
        near = min((n for n in known if str(kind) in known[n]), key=lambda n: max(n / rows, rows / n))
        return known[near][str(kind)]


@dataclass
class SharedClock:
    """What steps of `mtp` took on two cores of an AMD EPYC, in a loop over all depths. Over one or two seconds kinds
    of step differ from their means by chance; over ten and more, all of them by the same, within 8%."""

    batch: int
    chance: random.Random
    drafter: str = "mtp"
    starved: bool = False
    answer: int = 96
    last: float = 0.0
    """Seconds that a step like the last takes on average, at this moment."""
    _pace: float = 0.0
    _proposed: int = 0

    def prompt(self) -> None:
        self._proposed = 0

    def seconds(self, rows: int, verified: int, propose: int) -> float:
        made, self._proposed = max(self._proposed, verified), propose  # beside a prompt they are made as well
        none, some, draft, verify = (
            one + (many - one) * (rows - 1) / 7 for one, many in zip(*MILLISECONDS.values(), strict=True)
        )
        seconds = 1e-3 * (some + draft * made + verify * verified if made else none)
        stays = math.exp(-seconds / 20)
        self._pace = stays * self._pace + math.sqrt(1 - stays**2) * self.chance.gauss(0, 0.08)
        self.last = seconds * math.exp(self._pace * (1 if made else 0.5))
        return self.last * math.exp(self.chance.gauss(0, 0.1))


MILLISECONDS = {1: (8.7, 11.6, 1.2, 0.45), 8: (12.8, 17.5, 2.2, 1.85)}
"""By rows: a step without drafts, and one with some, and more for each that is made for it, and verified."""


def run(policy: Depth, clock: Clock | SharedClock, step: int, fewest: int = TEXTS) -> tuple[float, int]:
    """All requests of a batch, or one after another: tokens a second while all run; and the last step's number."""
    texts = MEASURED[clock.drafter]["accepted"][: max(fewest, clock.batch)]
    seconds, tokens = 0.0, 0
    for first in range(0, len(texts), clock.batch):
        took, brought, step = _answer(policy, clock, texts[first : first + clock.batch], step)
        seconds, tokens = seconds + took, tokens + brought
    return tokens / seconds, step


def _answer(policy: Depth, clock: Clock | SharedClock, texts: list[str], step: int) -> tuple[float, int, int]:
    """Overlapped, as the engine is: a step is planned before the one before it is known. The step after the prompts
    is not counted."""
    text = dict(zip(map(Row, range(1, clock.batch + 1)), texts, strict=True))
    had = dict.fromkeys(text, 0)
    made, generation, seconds, tokens = dict.fromkeys(text, 0), step, 0.0, 0
    before: StepResult | None = None
    clock.prompt()
    number, all_run = 0, True
    while had:
        prompt = number == 0
        if prompt:
            policy.expect(clock.batch, joining=clock.batch)
        step, propose = step + 1, policy.decide()
        windows = {row: 0 if prompt else min(made[row], clock.answer - n - 1) for row, n in had.items()}
        work = tuple(
            RowWork(row, generation, 40 if prompt else 1 + n, Window(n)) for row, n in windows.items()
        )
        starts = tuple(_start(row, generation) for row in had) if prompt else ()
        positions = tuple(40 * (not prompt) + n for n in had.values())
        policy.planned(StepPlan(step, work=work, starts=starts, propose=propose, positions=positions))
        chosen = [(0,) * (1 + min(n, int(text[row][max(0, had[row] - 1)]))) for row, n in windows.items()]
        for w, kept in zip(work, chosen, strict=True):
            had[w.row] += len(kept)
            made[w.row] = min(propose, policy.share(w.row))
        took = 0.01 if prompt else clock.seconds(len(work), max(windows.values()), propose)
        if all_run and number > 1:
            seconds, tokens = seconds + clock.last, tokens + sum(map(len, chosen))
        had = {row: n for row, n in had.items() if n < clock.answer}
        all_run, number = all_run and len(had) == clock.batch, number + 1
        policy.think()
        if before:
            policy.collected(before)
        before = StepResult(step, work=work, tokens=chosen, seconds=took, starved=clock.starved)
    assert before is not None
    policy.collected(before)
    return seconds, tokens, step


def _start(row: Row, generation: int) -> RowStart:
    return RowStart(row, generation, (), Slot(1), Slot(0), 0, SamplingParams(), 0)
