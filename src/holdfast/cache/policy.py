"""Which checkpoints are worth a slot. Pure functions of numbers: nothing here holds anything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..config import CHUNK


@dataclass(frozen=True)
class Policy:
    """The defaults; `benchmarks/prefix_reuse.py` shows what they are worth.

    sparse_every   a long prompt leaves a checkpoint every so many tokens
    per_path       checkpoints that one path may hold, so that a long conversation leaves room for others
    worth_waiting  tokens that another request must be about to compute before one waits for them
    """

    sparse_every: int = 4096
    per_path: int = 3
    worth_waiting: int = CHUNK

    def prompt_lines(self, *, start: int, kv_len: int, length: int, page_size: int) -> tuple[int, ...]:
        """Lines worth keeping of `length` known tokens, those before `start` being computed already.

        KV was found up to `kv_len`, though no checkpoint so deep: there two prompts part, seen a second time.
        """
        wanted = {end_line(length, page_size), kv_len, *self._sparse(start, length, page_size)}
        return tuple(line for line in sorted(wanted) if start < line < length)

    def answer_line(self, *, position: int, end: int, page_size: int) -> int | None:
        """The line that the tokens from `position` to `end` reach, if they are an answer's.

        Nobody knows which of them will be the last, so each is kept until the next one is.
        """
        line = end // page_size * page_size
        return line if line > position else None

    def score(self, *, saved: int, age: int, hits: int) -> float:
        """What a checkpoint is worth; the least is given up first. All have the same size.

        saved  tokens that would be recomputed without it
        age    admissions since it was made or consumed
        hits   how often it was consumed
        """
        return saved * (1 + hits) / math.sqrt(1 + age)

    def _sparse(self, start: int, length: int, page_size: int) -> Iterator[int]:
        step = max(self.sparse_every, page_size)
        return iter(range((start // step + 1) * step, length, step))


def end_line(length: int, page_size: int) -> int:
    """The last line before the last token, where a run to the end has a state: not inside a whole block."""
    line = (length - 1) // page_size * page_size
    blocks = length // CHUNK * CHUNK
    return line if line % CHUNK == 0 or line > blocks else blocks - CHUNK
