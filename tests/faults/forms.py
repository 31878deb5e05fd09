"""Answers that must have a form: whose mask, of which place, after which tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.executor.constraints import Constraints
from holdfast.grammar import Matcher

from .contracts import answers_have_their_form
from .fault import Fault, wrap

ANSWERS = "tests/structured/test_answers.py"


def _not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    def permitted(
        matcher: Matcher, place: int, drafts: Sequence[int], following: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, bytes]]:
        yield place, matcher._matcher.compute_bitmask()
        for draft in following[place]:
            if matcher._follow(drafts[draft]):
                yield from permitted(matcher, draft + 1, drafts, following)

    patch.setattr(Matcher, "_permitted", permitted)


def _neighbours_mask(patch: pytest.MonkeyPatch) -> None:
    def shifted(masks: Callable[..., Any]) -> Callable[..., Any]:
        def other(constraints: Constraints, lanes: Any) -> Any:
            made = masks(constraints, lanes)
            return replace(made, permitted=made.permitted.roll(1, 0))

        return other

    wrap(patch, Constraints, "masks", shifted)


def _a_position_late(patch: pytest.MonkeyPatch) -> None:
    def late(permitted: Callable[..., Any]) -> Callable[..., Any]:
        def other(matcher: Matcher, drafts: Sequence[int], parents: Sequence[int]) -> Iterator[Any]:
            made = dict(permitted(matcher, drafts, parents))
            return iter([(place, made[parents[place - 1] if place else 0]) for place in made])

        return other

    wrap(patch, Matcher, "permitted", late)


def _a_step_late(patch: pytest.MonkeyPatch) -> None:
    """The tokens of the step before are not waited for."""

    def late(launched: Callable[..., Any]) -> Callable[..., Any]:
        waiting: dict[int, Any] = {}

        def other(constraints: Constraints, step: Any) -> None:
            before = waiting.pop(id(constraints), None)
            waiting[id(constraints)] = step
            if before is not None:
                launched(constraints, before)

        return other

    wrap(patch, Constraints, "launched", late)


FAULTS = (
    Fault(
        "matcher-not-rolled-back",
        "a class of many",
        "a form is followed along drafts, and stays there when they are rejected",
        ANSWERS,
        _not_rolled_back,
        contract=answers_have_their_form,
    ),
    Fault(
        "mask-of-the-neighbour",
        "a class of many",
        "each place is masked with what another row, or another place of the window, permits",
        ANSWERS,
        _neighbours_mask,
        contract=answers_have_their_form,
    ),
    Fault(
        "mask-a-position-late",
        "a class of many",
        "the place after a draft has the mask of the place before it",
        ANSWERS,
        _a_position_late,
        contract=answers_have_their_form,
    ),
    Fault(
        "mask-a-step-late",
        "a class of many",
        "masks are made before the tokens of the step before are known",
        ANSWERS,
        _a_step_late,
        contract=answers_have_their_form,
    ),
)
