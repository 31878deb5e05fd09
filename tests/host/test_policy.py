"""Which checkpoints are wanted, and which go first: numbers in, numbers out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cache import Policy
from holdfast.cache.policy import end_line
from holdfast.config import CHUNK, run_reaches

from .examples import EXAMPLES

POLICY = Policy()


@pytest.mark.parametrize(
    ("length", "page_size", "line"),
    [
        *((1, 64, 0), (64, 64, 0), (65, 64, 64), (128, 64, 64), (129, 64, 128), (300, 256, 256)),
        *((100, 16, 96), (97, 16, 96), (96, 16, 80), (112, 16, 96), (128, 16, 64), (129, 16, 128)),
    ],
)
def test_the_end_of_a_prompt(length: int, page_size: int, line: int) -> None:
    assert max(0, end_line(length, page_size)) == line


@EXAMPLES
@given(st.integers(1, 2000), st.sampled_from([16, 32, 64, 128]))
def test_a_run_has_a_state_at_the_end_of_a_prompt(length: int, page_size: int) -> None:
    line = end_line(length, page_size)
    assert line < length and line % page_size == 0
    assert line < 1 or run_reaches(line, 0, length)
    assert length - line <= max(page_size, CHUNK)


def lines(start: int, kv_len: int, length: int, **options: int) -> tuple[int, ...]:
    return Policy(**options).prompt_lines(start=start, kv_len=kv_len, length=length, page_size=64)


def test_lines_of_a_prompt() -> None:
    assert lines(0, 0, 50) == ()
    assert lines(0, 0, 200) == (192,)
    assert lines(192, 192, 200) == ()
    assert lines(0, 128, 200) == (128, 192), "where two prompts part, seen a second time"
    assert lines(64, 128, 1000, sparse_every=512) == (128, 512, 960)
    assert lines(512, 512, 1100, sparse_every=512) == (1024, 1088)


@pytest.mark.parametrize(
    ("position", "end", "line"), [(63, 64, 64), (64, 65, None), (10, 11, None), (60, 70, 64)]
)
def test_lines_of_an_answer(position: int, end: int, line: int | None) -> None:
    assert POLICY.answer_line(position=position, end=end, page_size=64) == line


@EXAMPLES
@given(st.integers(1, 10_000), st.integers(0, 1000), st.integers(0, 50))
def test_what_saves_more_was_used_later_or_more_often_is_worth_more(saved: int, age: int, hits: int) -> None:
    score = POLICY.score(saved=saved, age=age, hits=hits)
    assert score < POLICY.score(saved=saved + 1, age=age, hits=hits)
    assert score > POLICY.score(saved=saved, age=age + 1, hits=hits)
    assert score < POLICY.score(saved=saved, age=age, hits=hits + 1)


@pytest.mark.parametrize(
    ("line", "start", "end", "reached"),
    [
        (64, 0, 200, True),
        (80, 0, 200, False),  # inside a whole block
        (192, 0, 200, True),
        (200, 0, 200, True),
        (80, 70, 200, True),  # before the first whole block
        (144, 70, 200, False),
        (208, 0, 208, True),
        (80, 0, 100, True),  # after the last
        (0, 0, 100, False),
        (112, 0, 100, False),
    ],
)
def test_where_a_run_has_a_state(line: int, start: int, end: int, reached: bool) -> None:
    assert run_reaches(line, start, end) == reached
