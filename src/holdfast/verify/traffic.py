"""The same requests for every cell, and the turns of an engine that answers them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..engine import Engine
from ..params import MAX_LOGPROBS, Structured
from ..request import FinishReason, Request, SamplingParams
from .cells import ALONE, Traffic
from .rules import Scored

LENGTHS = (1, 2, 15, 17, 63, 64, 65, 130, 200, 320)
QUICK_LENGTHS = (1, 17, 64, 65, 150)
"""Of prompts: beside every line of the fold grid, of chunks and of pages, and some that pass several."""
ANSWER, QUICK_ANSWER = 48, 24
FORM = Structured(json={"type": "array", "minItems": 1000, "items": {"enum": ["ebb", "flood", None, [1, 2]]}})
"""Longer than any answer, so that all have the same length."""
LONGEST_STAY = 12
"""Turns after which a request that is to be cancelled has been."""


@dataclass(frozen=True)
class Ask:
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int

    def request(self, id_: str, priority: int = 0) -> Request:
        return Request(id_, self.prompt, self.params, seed=self.seed, priority=priority)


@dataclass(frozen=True)
class Workload:
    greedy: tuple[Ask, ...]
    drawn: tuple[Ask, ...]
    """Sampled from a seed, so the same only where every bit is."""
    leavers: tuple[Ask, ...]
    formed: tuple[Ask, ...]
    """The greedy ones, every other with a form."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer included."""
        asks = (*self.greedy, *self.drawn, *self.leavers)
        return max(len(ask.prompt) + ask.params.max_tokens for ask in asks)


def make_workload(seed: int, vocab_size: int, positions: int | None, *, quick: bool) -> Workload:
    """Random tokens. Some prompts begin as the longest one does, so that there is a prefix to resume."""
    draw = random.Random(seed)
    lengths, answer = (QUICK_LENGTHS, QUICK_ANSWER) if quick else (LENGTHS, ANSWER)
    most = (positions or 1 << 30) - answer - 8  # a prefix and a little more must fit as well
    if most < 1:
        raise ValueError(f"the model has {positions} positions, too few for an answer of {answer} tokens")

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab_size) for _ in range(count))

    def asks(prompts: Sequence[tuple[int, ...]], **params: float) -> tuple[Ask, ...]:
        chosen = SamplingParams(max_tokens=answer, ignore_eos=True, logprobs=MAX_LOGPROBS, **params)  # type: ignore[arg-type]
        return tuple(Ask(prompt, chosen, draw.getrandbits(63)) for prompt in prompts)

    prompts = [tokens(min(length, most)) for length in lengths]
    longest = prompts[-1]
    family = [longest[:64] + tokens(3), longest[:-10] + tokens(12), longest + tokens(5)]
    greedy = asks([*prompts, *family], temperature=0.0)
    return Workload(
        greedy=greedy,
        formed=tuple(_formed(ask) if place % 2 else ask for place, ask in enumerate(greedy)),
        drawn=asks([prompts[1], longest], temperature=0.8),
        leavers=asks([tokens(min(length, most)) for length in (40, 90, 5, 70)], temperature=0.0),
    )


def _formed(ask: Ask) -> Ask:
    return replace(ask, params=replace(ask.params, structured=FORM, ignore_eos=False))


@dataclass(frozen=True)
class Served:
    answers: tuple[tuple[int, Scored], ...]
    """The place of each ask among those given, and its answer."""
    happened: dict[str, int]
    """How often what a cell may insist on did."""


def serve(engine: Engine, asks: Sequence[Ask], traffic: Traffic, leavers: Sequence[Ask], seed: int) -> Served:
    """Every ask's answer, for each time that it comes."""
    run = _Run(engine, random.Random(seed), leavers if traffic.leavers else ())
    asked: list[tuple[int, Request]] = []
    for again in range(traffic.rounds):
        for place, ask in enumerate(asks):
            request = ask.request(f"{place}.{again}")
            asked.append((place, request))
            run.submit(request)
            run.turns(traffic.gap)
    run.turns(None)
    for _, request in asked:
        if request.finish_reason is not FinishReason.LENGTH:
            raise RuntimeError(f"request {request.id} ended as {request.finish_reason}: {request.error}")
    return Served(
        answers=tuple((place, tuple(request.logprobs)) for place, request in asked),
        happened={
            "pre-emptions": engine.scheduler.counters.preempted,
            "cancellations": engine.scheduler.counters.cancelled,
            "drafts": engine.scheduler.speculation.drafts,
            "masks": engine.runner.constraints.stats.masks,
            "hits": sum(request.metrics.cached_tokens > 0 for _, request in asked),
        },
    )


class _Run:
    """Turns of an engine, with company that does not stay."""

    def __init__(self, engine: Engine, draw: random.Random, leavers: Sequence[Ask]) -> None:
        self._engine, self._draw = engine, draw
        self._leavers: Iterator[tuple[int, Ask]] = iter(enumerate(leavers))
        self._stays: dict[str, int] = {}  # turns that each one present still has

    def submit(self, request: Request) -> None:
        self._engine.submit(request)

    def turns(self, count: int | None) -> None:
        """That many, or until all is done."""
        while self._engine.has_work if count is None else count:
            self._come_and_go()
            self._engine.step()
            count = None if count is None else count - 1

    def _come_and_go(self) -> None:
        for id_, left in list(self._stays.items()):
            self._stays[id_] = left - 1
            if not left:
                self._engine.cancel(id_)
                del self._stays[id_]
        if len(self._stays) < 2 and (coming := next(self._leavers, None)):
            number, ask = coming
            self._engine.submit(ask.request(f"leaver {number}", priority=self._draw.choice((-1, 0, 1))))
            self._stays[f"leaver {number}"] = self._draw.randrange(LONGEST_STAY)


def plain_answers(engine: Engine, asks: Sequence[Ask]) -> list[Scored]:
    return [answer for _, answer in serve(engine, asks, ALONE, (), 0).answers]
