"""A plan as device tensors: windows before runs, and nobody chooses who has nothing to choose from."""

from __future__ import annotations

import torch

from holdfast import LLM
from holdfast.executor.inputs import Inputs
from holdfast.ids import Row
from holdfast.plan import RowWork, StepPlan, Window


def work(row: int, tokens: int, *, sample: bool) -> RowWork:
    return RowWork(Row(row), 1, tokens, Window(bonus=sample), position=0)


def test_windows_come_first_and_a_row_without_tokens_chooses_nothing() -> None:
    limits = LLM(None, max_num_seqs=4, max_model_len=256).capacity.limits
    plan = StepPlan(
        1,
        work=(
            work(3, 5, sample=True),
            work(1, 1, sample=True),
            work(2, 0, sample=True),
            work(4, 1, sample=False),
        ),
    )
    lanes = Inputs(limits, torch.device("cpu")).fill(plan)
    assert [w.row for w in lanes.work] == [1, 2, 4, 3]
    assert (lanes.num_windows, lanes.longest_window) == (3, 1)
    assert lanes.rows.tolist() == [1, 2, 4, 3] and lanes.offsets.tolist() == [0, 1, 1, 2, 7]
    assert lanes.choosers == (0, 3), "lane 1 has no token, so its last hidden state would be a neighbour's"
    assert lanes.sampled.tolist() == [0, 3]
