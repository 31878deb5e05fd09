"""A plan as device tensors: windows before runs, and nobody chooses who has nothing to choose from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.random_model import random_model

from holdfast import LLM
from holdfast.executor.inputs import Inputs, Lanes, Shape, uniform_shapes
from holdfast.ids import Row, Slot
from holdfast.ops.transfer import Buffer
from holdfast.plan import NO_CHOICE, Grant, RowWork, StepPlan, Window

FOUR_DRAFTS = {"method": "ngram", "num_speculative_tokens": 4}


def work(row: int, tokens: int, *, sample: bool) -> RowWork:
    return RowWork(Row(row), 1, tokens, Window(bonus=sample))


def test_windows_come_first_and_a_row_without_tokens_chooses_nothing() -> None:
    limits = LLM(random_model(), max_num_seqs=4, max_model_len=256).capacity.limits
    plan = StepPlan(
        1,
        work=(
            work(3, 5, sample=True),
            work(1, 1, sample=True),
            work(2, 0, sample=True),
            work(4, 1, sample=False),
        ),
        positions=(0,) * 4,
        uncertain=(0,) * 4,
    )
    lanes = Inputs(limits, torch.device("cpu")).fill(plan)
    assert [w.row for w in lanes.work] == [1, 2, 4, 3]
    assert (lanes.num_windows, lanes.longest_window) == (3, 1)
    assert lanes.rows.tolist() == [1, 2, 4, 3] and lanes.offsets.tolist() == [0, 1, 1, 2, 7]
    assert lanes.choices.choosers == (0, 3), (
        "lane 1 has no token, so its last hidden state would be a neighbour's"
    )
    assert lanes.choices.drafts.lane.tolist() == [0, 3] and lanes.choices.drafts.tell.tolist() == [1, 3]
    assert lanes.choices.after.tolist() == [0, 6] and lanes.choices.drafts.first.tolist() == [0, 1]


DRAFTING = StepPlan(
    1,
    work=(
        RowWork(Row(2), 1, 3, Window(drafts=2)),  # one token that is known, two drafts
        RowWork(Row(5), 1, 3, Window()),  # the end of a prompt
        RowWork(Row(4), 1, 1, NO_CHOICE),
        RowWork(Row(1), 1, 2, Window(drafts=1)),
    ),
    positions=(9, 0, 7, 8),
    uncertain=(0, 0, 0, 3),
)
"""Work of one step, and what each of its lanes may choose."""


def drafting_lanes(*shapes: Shape) -> Lanes:
    limits = LLM(
        random_model(), max_num_seqs=5, max_model_len=256, speculative_config=FOUR_DRAFTS
    ).capacity.limits
    return Inputs(limits, torch.device("cpu"), shapes).fill(DRAFTING)


def test_choices_follow_the_last_known_token_and_every_draft() -> None:
    lanes = drafting_lanes()
    choices, tokens = lanes.choices, torch.arange(9)
    assert lanes.offsets.tolist() == [0, 3, 6, 7, 9]
    assert choices.choosers == (0, 1, 3) and choices.begins == (0, 3, 4) and choices.drafts.most == 2
    assert choices.drafts.tell.tolist() == [2, 5, 1] and choices.drafts.drafts.tolist() == [2, 0, 1]
    assert tokens[choices.after].tolist() == [0, 1, 2, 5, 7, 8]
    chosen = torch.tensor([10, 11, 12, 20, 30, 31])
    assert choices.drafts.by_lane(chosen).tolist() == [[10, 11, 12], [20, 20, 20], [30, 31, 31]]


def test_in_a_uniform_step_every_token_is_followed_by_a_choice() -> None:
    lanes = drafting_lanes(Shape(6, 3))
    choices = lanes.choices
    assert lanes.uniform and lanes.offsets.tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert choices.after.tolist() == list(range(18)) and choices.drafts.most == 2
    assert choices.choosers == (0, 1, 3) and choices.begins == (0, 5, 9)
    assert choices.drafts.tell.tolist() == [2, 5, 0, 1, 0, 0] and choices.drafts.drafts.tolist() == [
        2,
        0,
        0,
        1,
        0,
        0,
    ]
    by_lane = choices.drafts.by_lane(torch.arange(18))
    assert by_lane[[0, 1, 3]].tolist() == [[0, 1, 2], [5, 5, 5], [9, 10, 10]]


def test_a_step_in_which_nobody_takes_part() -> None:
    """What is recorded with: all lanes are padding, and the next step fills the very same tensors."""
    limits = LLM(
        random_model(), max_num_seqs=5, max_model_len=256, speculative_config=FOUR_DRAFTS
    ).capacity.limits
    shape = Shape(6, 3)
    inputs = Inputs(limits, torch.device("cpu"), [shape])
    inputs.fill(DRAFTING)
    nobody = inputs.padding(shape)
    assert nobody.work == nobody.exports == nobody.choices.choosers == () and nobody.uniform
    assert (nobody.num_windows, nobody.longest_window, nobody.window_tokens) == (6, 3, 18)
    assert not nobody.rows.any() and not nobody.counts.any()
    assert not nobody.choices.drafts.drafts.any() and not nobody.choices.drafts.tell.any()
    somebody = inputs.fill(DRAFTING)
    assert places(somebody) == places(nobody) and nobody.rows.tolist() == [2, 5, 4, 1, 0, 0]


def test_a_recorded_drafter_finds_the_rows_that_chose_beside_a_prompt() -> None:
    """Of three lanes two choose: where a uniform step of four would have them, and padding behind."""
    limits = LLM(random_model(), max_num_seqs=4, max_model_len=256).capacity.limits
    inputs = Inputs(limits, torch.device("cpu"), [Shape(1, 1), Shape(4, 1)])
    recorded = inputs.padding(Shape(4, 1)).choices.drafts.tell
    rows = (work(4, 1, sample=True), work(2, 64, sample=False), work(3, 9, sample=True))
    lanes = inputs.fill(StepPlan(1, work=rows, positions=(9, 0, 0), uncertain=(0,) * 3))
    assert not lanes.uniform and inputs.size(lanes) == 4
    inputs.as_if_uniform(lanes)
    assert recorded.tolist() == [4, 3, 0, 0]


def places(lanes: Lanes) -> list[tuple[int, int]]:
    drafts = lanes.choices.drafts
    tensors = (lanes.rows, lanes.counts, lanes.offsets, lanes.lane, lanes.offset, lanes.choices.after)
    return [(x.data_ptr(), len(x)) for x in (*tensors, drafts.lane, drafts.drafts, drafts.first, drafts.tell)]


def test_a_step_has_the_smallest_shape_that_it_fits_into() -> None:
    assert drafting_lanes(Shape(8, 5), Shape(4, 3), Shape(4, 1)).shape == Shape(4, 3)
    assert drafting_lanes(Shape(4, 1), Shape(3, 3)).shape is None, "four lanes of up to three tokens"
    assert drafting_lanes(Shape(4, 1), Shape(5, 5)).shape == Shape(5, 5)


@pytest.mark.parametrize("seqs", [1, 3, 8, 100, 3000])
def test_every_step_of_windows_has_a_shape(seqs: int) -> None:
    limits = LLM(
        random_model(), max_num_seqs=1, max_model_len=256, speculative_config=FOUR_DRAFTS
    ).capacity.limits
    shapes = uniform_shapes(replace(limits, max_num_seqs=seqs), (0, limits.max_drafts))
    lanes = sorted({shape.lanes for shape in shapes})
    assert lanes[0] == 1 and lanes[-1] == seqs and {shape.window for shape in shapes} == {1, 5}
    assert all(more <= 2 * less or more - less <= 128 for less, more in pairwise(lanes) if more <= 1024)


def test_what_lies_on_the_device_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = LLM(
        random_model(), max_num_seqs=5, max_model_len=256, speculative_config=FOUR_DRAFTS
    ).capacity.limits
    shape, sent = Shape(6, 3), list[int]()
    fill = Buffer.fill
    monkeypatch.setattr(
        Buffer, "fill", lambda self, values, turn: (sent.append(turn), fill(self, values, turn))[1]
    )
    inputs = Inputs(limits, torch.device("cpu"), [shape])
    moved = replace(DRAFTING, step=2, positions=(10, 3, 8, 9), uncertain=(1, 0, 0, 0))
    fewer = replace(DRAFTING, step=3, work=DRAFTING.work[:1], positions=(9,), uncertain=(0,))
    ragged = replace(DRAFTING, step=4, work=(work(3, 9, sample=True),), positions=(0,), uncertain=(0,))
    first = inputs.fill(DRAFTING)
    again = inputs.fill(moved)
    assert sent == [1] and again == first._replace(turn=2, positions=(10, 3, 8, 9), uncertain=(1, 0, 0, 0))
    inputs.fill(fewer)
    assert first.rows.tolist() == [2, 0, 0, 0, 0, 0], "as it is now"
    for other in (ragged, DRAFTING, ragged, ragged):
        inputs.fill(other)
    assert sent == [1, 3, 4, 1, 4, 4], "a run is never what the one before it was"
    inputs.fill(DRAFTING)
    inputs.padding(shape)
    assert inputs.fill(DRAFTING).rows.tolist() == [2, 5, 4, 1, 0, 0]


def test_nor_are_windows_that_have_no_shape() -> None:
    limits = LLM(random_model(), max_num_seqs=5, speculative_config=FOUR_DRAFTS).capacity.limits
    inputs = Inputs(limits, torch.device("cpu"), [])
    first = inputs.fill(DRAFTING)
    assert first.shape is None
    again = inputs.fill(replace(DRAFTING, step=2))
    assert again.rows is first.rows and again == first._replace(turn=2)


def test_windows_that_are_back_are_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the depth changes and changes back; but not for another request in one of the rows."""
    limits = LLM(
        random_model(), max_num_seqs=5, max_model_len=256, speculative_config=FOUR_DRAFTS
    ).capacity.limits
    worked_out, lay_out = list[int](), Inputs._lay_out
    monkeypatch.setattr(
        Inputs,
        "_lay_out",
        lambda self, plan, *args: (worked_out.append(plan.step), lay_out(self, plan, *args))[1],
    )
    inputs = Inputs(limits, torch.device("cpu"), [Shape(6, 1), Shape(6, 3)])
    plain = tuple(work(row, 1, sample=True) for row in (2, 5, 4, 1))
    first = inputs.fill(DRAFTING)
    told = [x.clone() for x in (first.counts, first.choices.drafts.first, first.lane)]
    inputs.fill(replace(DRAFTING, step=2, work=plain))
    back = inputs.fill(replace(DRAFTING, step=3, positions=(10, 3, 8, 9), uncertain=(1, 0, 0, 0)))
    assert worked_out == [1, 2]
    assert back == first._replace(turn=3, positions=(10, 3, 8, 9), uncertain=(1, 0, 0, 0))
    for now, then in zip((back.counts, back.choices.drafts.first, back.lane), told, strict=True):
        assert now.tolist() == then.tolist()
    inputs.fill(replace(DRAFTING, step=4, work=plain))
    another = (DRAFTING.work[0]._replace(generation=2), *DRAFTING.work[1:])
    assert inputs.fill(replace(DRAFTING, step=5, work=another)).work == another and worked_out == [1, 2, 5]


def test_windows_export_nothing() -> None:
    inputs = Inputs(LLM(random_model(), max_num_seqs=4).capacity.limits, torch.device("cpu"), [Shape(4, 1)])
    plan = StepPlan(1, work=(work(3, 1, sample=True),), positions=(63,), uncertain=(0,))
    for number in (1, 2):
        export = Grant(Row(3), 1, Slot(number), 64)
        lanes = inputs.fill(replace(plan, step=number, exports=(export,)))
        assert (lanes.exports, lanes.missed_exports) == ((), (export,))
    assert inputs.fill(plan).missed_exports == ()
