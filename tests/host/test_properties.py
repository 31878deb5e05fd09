"""Random traffic over tiny pools, against a device that checks every read.

Every request ends exactly once, with exactly the tokens it would get alone; nothing leaks, nothing starves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.cache import Policy
from holdfast.config import Limits
from holdfast.plan import Grant
from holdfast.request import Request, SamplingParams

from .examples import EXAMPLES
from .fake import Loses, never
from .harness import Harness

VOCAB = 29


@st.composite
def small_limits(draw: st.DrawFn, spare_pages: tuple[int, ...], num_slots: tuple[int, ...]) -> Limits:
    """Pools that hold one request of full length, and `spare_pages` more."""
    page_size = draw(st.sampled_from([2, 4, 8]))
    fold_every = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= page_size]))
    limits = Limits(
        max_num_seqs=draw(st.sampled_from([4, 3, 2, 1])),
        max_num_batched_tokens=draw(st.sampled_from([16, 8, 64, 5, 3, 2, 1])),
        max_model_len=draw(st.sampled_from([16, 24, 31, 36, 8])),
        vocab_size=VOCAB,
        page_size=page_size,
        num_pages=0,
        num_slots=draw(st.sampled_from(num_slots)),
        fold_every=fold_every,
        max_window=draw(st.integers(1, min(5, fold_every))),
    )
    checkpoints = draw(st.integers(0, max(0, limits.num_slots - 1)))
    pages = limits.pages_per_row + draw(st.sampled_from(spare_pages))
    return replace(limits, num_pages=pages, num_checkpoints=checkpoints)


TIGHT = small_limits(spare_pages=(0, 1, 2, 4, 9), num_slots=(6, 4, 3, 2, 1, 0))
ROOMY = small_limits(spare_pages=(24, 48, 12), num_slots=(12, 24, 8, 6, 0))


KINDS = ("end_of_known", "next_boundary", "seldom_reached", "too_late", "nothing", "default")


@dataclass(frozen=True)
class Lines(Policy):
    """Which lines to publish, from the sensible to the useless."""

    kind: str = "default"

    def prompt_lines(self, *, start: int, kv_len: int, length: int, page_size: int) -> tuple[int, ...]:
        if self.kind == "default":
            return super().prompt_lines(start=start, kv_len=kv_len, length=length, page_size=page_size)
        last = (length - 1) // page_size * page_size
        every = range(page_size, length + 1, page_size)
        return {"next_boundary": tuple(every), "end_of_known": (last,) if last else ()}.get(self.kind, ())

    def answer_line(self, *, position: int, end: int, page_size: int) -> int | None:
        if self.kind == "too_late":
            return max(1, position // page_size) * page_size
        if self.kind == "seldom_reached":
            return (position // page_size + 3) * page_size if position % 3 else None
        if self.kind == "nothing":
            return None
        return super().answer_line(position=position, end=end, page_size=page_size)


def policy(kind: str, page_size: int, per_path: int = 3) -> Policy:
    return Lines(kind=kind, per_path=per_path, worth_waiting=page_size, sparse_every=2 * page_size)


def lossy(grant: Grant) -> bool:
    return (grant.line + grant.slot) % 3 == 0


POLICIES = st.sampled_from(KINDS)
LOSSES: st.SearchStrategy[Loses] = st.sampled_from([never, lossy])


@dataclass(frozen=True)
class Ask:
    """A request in outline. Prompts of a stem begin alike; another differs in the first token only."""

    stem: int
    length: int
    tail: tuple[int, ...]
    max_tokens: int
    priority: int
    eos: frozenset[int]
    ignore_eos: bool
    stop: tuple[int, ...]

    def request(self, id_: str, limits: Limits) -> Request:
        stem = [self.stem, *((i * i) % VOCAB for i in range(1, self.length))]
        prompt = (*stem, *self.tail)[: limits.max_model_len - 1]
        params = SamplingParams(
            max_tokens=self.max_tokens, ignore_eos=self.ignore_eos, stop_token_ids=self.stop
        )
        return Request(id_, prompt, params, eos_token_ids=self.eos, priority=self.priority)


ASKS = st.builds(
    Ask,
    stem=st.integers(0, 1),
    length=st.sampled_from([4, 9, 6, 14, 1, 24, 34]),
    tail=st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
    max_tokens=st.sampled_from([12, 20, 30, 5, 2, 1]),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    eos=st.sampled_from([frozenset(), frozenset(), frozenset({1, 2})]),
    ignore_eos=st.booleans(),
    stop=st.sampled_from([(), (), (4, 5)]),
)


def most_turns(harness: Harness, requests: int) -> int:
    """The oldest running request is never pre-empted and gets on whenever no step in flight holds it up."""
    return (requests + 1) * (harness.limits.max_model_len + 2) * (harness.depth + 2)


ARRIVALS = st.lists(st.tuples(st.sampled_from([0, 0, 1, 6]), ASKS), min_size=3, max_size=9)
CANCELS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=2)


def serve(harness: Harness, arrivals: list[tuple[int, Ask]], cancels: list[tuple[int, int]]) -> None:
    """Submit each after so many turns, then cancel some; all must end, and end right."""
    for number, (gap, ask) in enumerate(arrivals):
        for _ in range(gap):
            harness.turn()
        harness.submit(ask.request(f"r{number}", harness.limits))
    for gap, number in cancels:
        for _ in range(gap):
            harness.turn()
        harness.cancel(f"r{number}")
    harness.drain(most_turns(harness, len(arrivals)))
    assert sorted(harness.ended) == sorted(f"r{n}" for n in range(len(arrivals)))


@EXAMPLES
@given(
    limits=TIGHT,
    depth=st.integers(0, 3),
    reuse=st.booleans(),
    kind=POLICIES,
    loses=LOSSES,
    arrivals=ARRIVALS,
    cancels=CANCELS,
)
def test_under_pressure(
    limits: Limits,
    depth: int,
    reuse: bool,
    kind: str,
    loses: Loses,
    arrivals: list[tuple[int, Ask]],
    cancels: list[tuple[int, int]],
) -> None:
    harness = Harness(limits, depth, reuse, policy(kind, limits.page_size), loses)
    serve(harness, arrivals, cancels)
    target(harness.scheduler.counters.preempted, label="pre-emptions")


@EXAMPLES
@given(limits=ROOMY, depth=st.integers(0, 3), kind=POLICIES, loses=LOSSES, arrivals=ARRIVALS, cancels=CANCELS)
def test_with_shared_prefixes(
    limits: Limits,
    depth: int,
    kind: str,
    loses: Loses,
    arrivals: list[tuple[int, Ask]],
    cancels: list[tuple[int, int]],
) -> None:
    harness = Harness(limits, depth, True, policy(kind, limits.page_size), loses)
    serve(harness, arrivals, cancels)


class Traffic(RuleBasedStateMachine):
    """The same, with submitting, launching, collecting and cancelling in any order at all."""

    @initialize(limits=TIGHT | ROOMY, reuse=st.booleans(), kind=POLICIES, loses=LOSSES)
    def begin(self, limits: Limits, reuse: bool, kind: str, loses: Loses) -> None:
        self.harness = Harness(limits, 3, reuse, policy(kind, limits.page_size), loses)
        self.submitted = 0

    @precondition(lambda self: self.submitted < 12)
    @rule(ask=ASKS)
    def submit(self, ask: Ask) -> None:
        self.harness.submit(ask.request(f"r{self.submitted}", self.harness.limits))
        self.submitted += 1

    @precondition(lambda self: len(self.harness.device.in_flight) <= 3)
    @rule(times=st.integers(1, 4))
    def launch(self, times: int) -> None:
        for _ in range(min(times, 4 - len(self.harness.device.in_flight))):
            self.harness.launch()

    @precondition(lambda self: self.harness.device.in_flight)
    @rule(times=st.integers(1, 4))
    def collect(self, times: int) -> None:
        for _ in range(min(times, len(self.harness.device.in_flight))):
            self.harness.collect()

    @rule(times=st.integers(1, 20))
    def turn(self, times: int) -> None:
        for _ in range(times):
            self.harness.turn()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id_ = f"r{data.draw(st.integers(0, self.submitted - 1))}"
        live = id_ not in self.harness.ended and id_ not in self.cancelled()
        assert self.harness.cancel(id_) == live

    def cancelled(self) -> list[str]:
        return [r.id for r in self.harness.scheduler._cancelled]

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.drain(most_turns(self.harness, self.submitted))
            assert sorted(self.harness.ended) == sorted(f"r{n}" for n in range(self.submitted))


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(EXAMPLES, max_examples=EXAMPLES.max_examples // 2, stateful_step_count=30)
