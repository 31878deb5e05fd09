"""The depth that accepted drafts, averaged over batches, come closest to. Knows nothing of what steps cost."""

from __future__ import annotations

from ..adaptive import AdaptiveConfig
from ..plan import StepPlan, StepResult
from .depth import Depth

PROBE_EVERY = 50
"""Batches without drafts, after which one has some: otherwise nothing would ever be accepted again."""


class EmaDepth(Depth):
    def __init__(self, config: AdaptiveConfig, initial: int) -> None:
        super().__init__(initial)
        self.reason = "warm-up" if config.warmup_batches else "ema"
        self._config, self._rows = config, 1
        self._accepted: float | None = None
        self._batches = self._without = 0
        self._settled = initial  # beside probes

    def decide(self) -> int:
        candidates = self._config.depths(self._rows)
        if self._settled not in candidates:  # another band
            self._settled = max((d for d in candidates if d <= self._settled), default=candidates[0])
        self.depth = self._settled
        if self._batches >= self._config.warmup_batches:
            self.reason = "ema"
        deeper = [d for d in candidates if d]
        if not self.depth and deeper and self._without >= PROBE_EVERY:
            self.depth, self.reason, self._without = deeper[0], "probe", 0
        return self.depth

    def planned(self, plan: StepPlan) -> None:
        super().planned(plan)
        self._rows = sum(work.sample for work in plan.work) or self._rows
        self._without += not self.depth

    def collected(self, result: StepResult) -> None:
        rows = zip(result.work, result.tokens, strict=True)
        accepted = [len(tokens) - 1 for work, tokens in rows if work.window.drafts]
        if not accepted:
            return
        mean, alpha = sum(accepted) / len(accepted), self._config.ema_alpha
        self._accepted = mean if self._accepted is None else (1 - alpha) * self._accepted + alpha * mean
        self._batches += 1
        due = (
            self._batches >= self._config.warmup_batches and not self._batches % self._config.update_interval
        )
        if due or not self._settled:
            self._settled = self._moved(self._config.depths(self._rows), self._accepted)

    def _moved(self, candidates: tuple[int, ...], accepted: float) -> int:
        """Down while so few are accepted that one depth less would do, up while nearly all are."""
        place = sum(d < self._settled for d in candidates)
        place = min(place, len(candidates) - 1)
        down, up = self._config.down_hysteresis, self._config.up_hysteresis
        while place and accepted <= _half_below(candidates[place - 1]) + down:
            place -= 1
        while place + 1 < len(candidates) and accepted > _half_below(candidates[place]) + up:
            place += 1
        return candidates[place]

    def why(self) -> str:
        accepted = "nothing yet" if self._accepted is None else f"{self._accepted:.2f} drafts a window"
        return f"{self.depth} drafts ({self.reason}); accepted lately: {accepted}"


def _half_below(depth: int) -> float:
    """So many accepted are taken to be all of `depth`; of none, half a draft more than none."""
    return max(depth - 0.5, 0.5)
