"""Where in a step's flat batch are the hidden states that lead to a prompt's tokens?"""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.random_model import random_model

from holdfast import LLM, SamplingParams
from holdfast.executor.inputs import Inputs, Shape
from holdfast.executor.prompt_scores import PromptScorer
from holdfast.executor.tables import RowTables
from holdfast.ids import Row, Slot
from holdfast.models.base import CausalLM
from holdfast.plan import BONUS, NO_CHOICE, RowStart, RowWork, StepPlan

THREE_DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize("shapes", [(), (Shape(3, 4),)], ids=["as long as they are", "a window apart"])
def test_the_states_of_its_own_lane(shapes: tuple[Shape, ...]) -> None:
    """Row 2 decodes; of row 3 two prompt tokens are left, of row 1 three come and more will."""
    limits = LLM(
        random_model(), max_num_seqs=3, max_model_len=64, speculative_config=THREE_DRAFTS
    ).capacity.limits
    inputs = Inputs(limits, torch.device("cpu"), shapes)
    scorer = PromptScorer(cast(CausalLM, None), cast(RowTables, None), inputs.scored, block=16)
    asking = SamplingParams(prompt_logprobs=2)
    for row, params in ((1, asking), (2, SamplingParams()), (3, asking)):
        scorer.start((RowStart(Row(row), 0, (), Slot(0), Slot(0), 0, params, 0, prompt_len=20),))
    work = (RowWork(Row(2), 0, 1, BONUS), RowWork(Row(3), 0, 2, BONUS), RowWork(Row(1), 0, 3, NO_CHOICE))
    lanes = inputs.fill(StepPlan(1, work=work, positions=(30, 18, 4), uncertain=(0, 0, 0)))
    counts, flat = scorer._take_asks(lanes)
    assert lanes.uniform is bool(shapes) and counts == {1: (1, 2), 2: (3, 2)}
    assert [(int(lanes.lane[at]), int(lanes.offset[at])) for at in flat] == [(1, 0), (2, 0), (2, 1), (2, 2)]
