"""What a step brought, told row by row; a StepResult has it in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.ids import Row
from holdfast.plan import BONUS, Grant, RowWork, StepResult, Window
from holdfast.request import TokenLogprob


class RowResult(NamedTuple):
    row: Row
    generation: int
    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    base: int = 0
    window: Window = BONUS
    proposed: int = 0


def step_result(
    step: int,
    rows: Sequence[RowResult] = (),
    used: tuple[Grant, ...] = (),
    missed: tuple[Grant, ...] = (),
) -> StepResult:
    return StepResult(
        step,
        work=tuple(RowWork(r.row, r.generation, 1 + r.window.drafts, r.window) for r in rows),
        positions=[r.position for r in rows],
        bases=[r.base for r in rows],
        tokens=[r.tokens for r in rows],
        proposed=[r.proposed for r in rows],
        logprobs={r.row: r.logprobs for r in rows if r.logprobs},
        prompt_logprobs={r.row: r.prompt_logprobs for r in rows if r.prompt_logprobs},
        used=used,
        missed=missed,
    )
