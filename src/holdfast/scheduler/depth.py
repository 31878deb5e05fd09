"""How many drafts are made in a step, for the next one to verify: a decision, made of what earlier steps brought."""

from __future__ import annotations

from collections import Counter, defaultdict

from ..config import SpeculativeConfig
from ..ids import Row
from ..plan import StepPlan, StepResult


class Depth:
    """Asked at the start of every plan, and told of every plan and result; what takes long is thought over while the
    device computes. This one never changes its mind; policies do."""

    def __init__(self, depth: int) -> None:
        self.depth, self.reason = depth, "fixed"
        self.steps = defaultdict[int, Counter[str]](Counter)
        """Planned so far, by depth and reason."""

    def expect(self, rows: int, *, joining: int) -> None:
        """Some may join in the step that is planned next; then there are so many rows."""

    def decide(self) -> int:
        """For the step that is planned now: the most drafts that any row gets."""
        return self.depth

    def share(self, row: Row) -> int:
        """Of them, this row's."""
        return self.depth

    def planned(self, plan: StepPlan) -> None:
        self.steps[self.depth][self.reason] += 1

    def collected(self, result: StepResult) -> None:
        """Step times and accepted drafts."""

    def think(self) -> None:
        """A step was launched, and nobody waits for the host. Before its result is told."""

    def why(self) -> str:
        """The last decision, in a sentence."""
        return f"{self.depth} drafts, as configured"


def make_depth(config: SpeculativeConfig | None, *, ragged: bool) -> Depth:
    """ragged  a step costs by its tokens; otherwise by its rows and its longest window"""
    from .cost_depth import CostDepth  # these are kinds of Depth
    from .ema_depth import EmaDepth

    if config is None or config.adaptive is None:
        return Depth(config.most_drafts if config else 0)
    if config.adaptive.policy == "ema":
        return EmaDepth(config.adaptive, config.num_speculative_tokens)
    return CostDepth(config.adaptive, config.num_speculative_tokens, ragged=ragged)


def draft_room(*, known: int, most_tokens: int, budget: int) -> int:
    """Drafts that could be of use: with the bonus they must not pass the last token that the request may have."""
    return min(most_tokens - known - 1, budget)
