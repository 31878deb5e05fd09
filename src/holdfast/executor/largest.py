"""The largest steps that may come, as plans."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Limits, pages_for
from ..ids import Page, Row, Slot
from ..params import MAX_LOGPROBS, SamplingParams
from ..plan import PageMap, RowStart, RowWork, StepPlan, Window

DEMANDING = SamplingParams(
    temperature=1.0,
    top_p=0.9,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
)
"""All that takes memory of its own."""


def largest_steps(limits: Limits, drafts: int) -> tuple[StepPlan, ...]:
    """One run, as many runs as a step has rows, and as many windows; each as long as it may be, with all that can be
    asked for and at the end of the longest context. Every row says the same, into the same page and slot, so that
    pools of one of each are enough; and they leave nothing that a row which starts later could find."""
    most, window, longest = limits.max_num_batched_tokens, limits.max_window, limits.max_model_len - 1
    runs = min(limits.max_num_seqs, max(1, most // (window + 1)))
    windows = min(limits.max_num_seqs, max(1, most // window))
    lengths = (
        [min(most, longest)],
        [min(most // runs, longest)] * runs,
        [min(most, window, longest)] * windows,
    )
    return tuple(_step(number, each, limits, drafts) for number, each in enumerate(lengths))


def _step(number: int, lengths: Sequence[int], limits: Limits, drafts: int) -> StepPlan:
    rows = [Row(lane + 1) for lane in range(len(lengths))]
    slot, end = Slot(min(1, limits.num_slots)), limits.max_model_len - 1
    held = [pages_for(length + 2 * limits.max_window, limits.page_size) for length in lengths]
    windows = [Window(length - 1 if length <= limits.max_window else 0) for length in lengths]
    return StepPlan(
        step=number,
        starts=tuple(
            RowStart(row, 0, (0,), slot, slot, base=0, params=DEMANDING, seed=0, prompt_len=end)
            for row in rows
        ),
        pages=tuple(
            PageMap(row, ordinal, Page(1))
            for row, pages in zip(rows, held, strict=True)
            for ordinal in range(min(pages, limits.pages_per_row))
        ),
        work=tuple(
            RowWork(row, 0, length, window)
            for row, length, window in zip(rows, lengths, windows, strict=True)
        ),
        # the device finds them at 0, where there is less to do; what is sized by a position is as large as it gets
        positions=tuple(end - length for length in lengths),
        uncertain=(0,) * len(lengths),
        propose=drafts,
    )
