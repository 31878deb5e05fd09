"""Two engines that take their steps in turn, so that whatever else the machine does meets both alike.

On a busy machine the difference of two sums of such steps is mostly noise; the CPU time that is spent inside what is
measured, `OwnTime`, is not.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.answer import Answer
from holdfast.params import SamplingParams
from holdfast.service import Service

Prompt = str | list[int]


@dataclass
class Clock:
    cpu: float = 0.0
    wall: float = 0.0

    def time(self, work: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall
        return result


class OwnTime:
    """CPU time that passes inside these methods: owners, and their names."""

    def __init__(self, *methods: tuple[Any, str]) -> None:
        self.cpu = 0.0
        for owner, name in methods:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            begun = time.process_time()
            result = call(*args)
            self.cpu += time.process_time() - begun
            return result

        return timed


def in_turn(
    services: Sequence[Service], asks: Sequence[Sequence[tuple[Prompt, SamplingParams]]]
) -> tuple[list[Clock], list[list[tuple[int, ...]]]]:
    """What each took for its requests, all submitted at once, and the tokens of their answers."""
    clocks = [Clock() for _ in services]
    asked = [
        clock.time(lambda service=service, each=each: _submitted(service, each))
        for clock, service, each in zip(clocks, services, asks, strict=True)
    ]
    order = list(zip(clocks, services, strict=True))
    while not all(answer.finished for answers in asked for answer in answers):
        order.reverse()
        for clock, service in order:
            clock.time(service.step)
    tokens = [[answer.completion().token_ids for answer in answers] for answers in asked]
    for service, answers in zip(services, asked, strict=True):
        service.let_go(answers)
    return clocks, tokens


def _submitted(service: Service, asks: Sequence[tuple[Prompt, SamplingParams]]) -> list[Answer]:
    return [answer for prompt, params in asks for answer in service.submit(prompt, params)]


def median_and_range(name: str, figures: Sequence[float]) -> dict[str, Any]:
    return {name: statistics.median(figures), f"{name}_range": [min(figures), max(figures)]}


def machine(threads: int) -> str:
    kind, load = platform.processor() or platform.machine(), os.getloadavg()[0]
    return f"{kind}, {threads} thread(s), load {load:.1f}, torch {torch.__version__}"
