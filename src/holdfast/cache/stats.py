"""What prefix reuse did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CacheCounters:
    """Since the start. Tokens are of prompts, counted when a request first gets a row."""

    requests: int = 0
    prompt_tokens: int = 0
    matched_tokens: int = 0
    """KV of these was there."""
    resumed_tokens: int = 0
    """And these were not computed again."""
    lost_tokens: int = 0
    """Matched, but there was no checkpoint so deep."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Requests, by why not more of their prompt was resumed."""
    resumed_after_preemption: int = 0
    """Tokens, of the answer too."""
    waited: int = 0
    """Requests that let another compute their common prefix first."""
    granted: int = 0
    published: int = 0
    missed: int = 0
    """Slots that were granted for a line which the row did not fold."""
    skipped: int = 0
    """Checkpoints that were wanted, but no slot could be had."""
    evicted_pages: int = 0
    evicted_checkpoints: int = 0
    """For want of slots."""
    lost_checkpoints: int = 0
    """Evicted together with the page that they belong to."""
    replaced_checkpoints: int = 0
    """Given up for a better one on the same path."""
    folds: int = 0
    """Results after which a row's checkpoint stood further than before."""


@dataclass(frozen=True)
class CacheStats:
    """The counters, and what is there now."""

    counters: CacheCounters
    pages: int
    """In the prefix tree."""
    idle_pages: int
    """Of those, the ones that no running request needs."""
    checkpoints: int
    num_pages: int
    num_slots: int
    num_checkpoints: int
    """Slots that running requests never take from checkpoints."""
    free_rows: int
    free_pages: int
    """Neither a request's nor the tree's."""
    free_slots: int

    @property
    def hit_rate(self) -> float:
        """The part of all prompt tokens that was not computed again."""
        return self.counters.resumed_tokens / max(1, self.counters.prompt_tokens)
