"""What drafters draft, recorded, to be compared with what they should."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast import LLM
from holdfast.spec.drafter import Draft, VerifiedStep


class Drafting(Protocol):
    def drafts(self, text: list[int], depth: int) -> list[int]: ...


Seen = list[tuple[list[int], list[int]]]
"""Texts, and the drafts that were made to follow them."""


def spied(llm: LLM) -> tuple[Any, Seen]:
    """Its drafter, and all that it drafts from now on."""
    drafter: Any = llm._engine.runner.speculation.drafter
    propose, seen = drafter.propose, []

    def spy(step: VerifiedStep) -> Draft:
        draft = propose(step)
        lanes = zip(step.rows.tolist(), step.position.tolist(), draft.tokens.tolist(), strict=True)
        seen.extend((step.tokens[row, : position + 1].tolist(), drafts) for row, position, drafts in lanes)
        return draft

    drafter.propose = spy
    return drafter, seen


def assert_drafts(plain: Drafting, seen: Seen) -> None:
    """They are those of a forward that keeps nothing, as far as rounding cannot decide."""
    assert len(seen) > 5
    compared = 0
    for text, drafts in seen:
        wanted = plain.drafts(text, len(drafts))
        assert drafts[: len(wanted)] == wanted
        compared += len(wanted)
    assert compared > 0.9 * sum(len(drafts) for _, drafts in seen)
