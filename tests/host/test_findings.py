"""What the scheduler does with requests whose state was found corrupt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.corruption import Finding, StateCorruption
from holdfast.request import FinishReason, Request

from .harness import Harness, make_limits, make_request


def finding(row: int, generation: int = 1) -> Finding:
    return Finding(1, "read", "blocks.1", "temporal", row, generation, place=3, expected=16, found=-1)


class Suspicious(Harness):
    """Reports a finding about `row` once `after` steps were collected, whoever has it."""

    row, after, generation = 2, 3, 1

    def collect(self) -> list[Request]:
        result = self.device.collect()
        if self.turns >= self.after and self.row:
            result, self.row = replace(result, findings=(finding(self.row, self.generation),)), 0
        requests = self.scheduler.collect(result)
        self.check()
        self.ended.update((r.id, r) for r in requests if r.finish_reason)
        return requests


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("reuse", [False, True])
def test_only_the_affected_request_ends_and_all_it_held_comes_back(depth: int, reuse: bool) -> None:
    harness = Suspicious(make_limits(), depth=depth, prefix_reuse=reuse)
    for id_, length in (("a", 5), ("b", 9), ("c", 7)):
        harness.submit(make_request(id_, tuple(range(length, 2 * length)), max_tokens=9))
    harness.drain()
    error = harness.ended["b"].error
    assert harness.ended["b"].finish_reason is FinishReason.ERROR
    assert isinstance(error, StateCorruption) and error.findings == (finding(2),)
    assert error.request_ids == ("b",) and "temporal in layer blocks.1" in str(error)
    for id_ in "ac":
        assert harness.ended[id_].error is None
        harness.check_answer(harness.ended[id_])


@pytest.mark.parametrize("depth", [0, 1])
def test_a_finding_about_a_tenant_that_left_ends_nobody(depth: int) -> None:
    harness = Suspicious(make_limits(), depth=depth)
    harness.generation = 7
    harness.submit(make_request("a", (1, 2, 3), max_tokens=9), make_request("b", (4, 5), max_tokens=9))
    harness.drain()
    for request in harness.ended.values():
        harness.check_answer(request)


def test_nobody_resumes_from_what_was_computed_before() -> None:
    harness = Suspicious(make_limits(max_model_len=64), prefix_reuse=True)
    shared = tuple(range(1, 17))
    harness.after = 6
    harness.submit(make_request("a", shared, max_tokens=2), make_request("b", (50, 51, 52), max_tokens=20))
    while harness.row:
        harness.turn()
    late = make_request("late", (*shared, 60), max_tokens=2)
    harness.submit(late)
    harness.drain()
    assert late.metrics.cached_tokens == 0
    harness.check_answer(late)
