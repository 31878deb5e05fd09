"""What a watcher is told of live requests, and why prefixes were not resumed further."""

from __future__ import annotations

from holdfast.scheduler.watch import LiveRequest

from .harness import Harness, make_limits, make_request


def watched(harness: Harness) -> dict[str, LiveRequest]:
    return {request.id: request for request in harness.scheduler.live_requests()}


def prompt(length: int, first: int = 1) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def test_rows_and_positions() -> None:
    harness = Harness(make_limits())
    harness.now = 40.0
    harness.submit(make_request("a", prompt(5), max_tokens=9, priority=3))
    assert watched(harness)["a"].waits_for == "the next step"
    harness.turn()
    harness.turn()
    [live] = harness.scheduler.live_requests()
    assert (live.id, live.row, live.position, live.tokens, live.prompt_tokens) == ("a", 1, 6, 7, 5)
    assert (live.seconds, live.priority, live.preemptions, live.waits_for) == (2.0, 3, 0, "")
    harness.drain()
    assert harness.scheduler.live_requests() == []


def test_those_without_a_row_say_what_they_wait_for() -> None:
    harness = Harness(make_limits(max_num_seqs=1))
    harness.submit(
        *(make_request(name, prompt(5, first), max_tokens=3) for first, name in enumerate("abc", 1))
    )
    harness.turn()
    assert [(r.id, r.row, r.position, r.waits_for) for r in harness.scheduler.live_requests()] == [
        ("a", 1, 5, ""),
        ("b", None, 0, "a row"),
        ("c", None, 0, "1 before it"),
    ]
    harness.drain()


def test_too_few_pages() -> None:
    """A newcomer leaves a page to those that run."""
    harness = Harness(make_limits(num_pages=3, num_slots=0))
    harness.submit(make_request("whole pool", prompt(11), max_tokens=1))
    assert watched(harness)["whole pool"].waits_for == "the next step"
    harness.drain()
    harness.submit(make_request("a", prompt(2), max_tokens=2))
    harness.turn()
    harness.submit(make_request("b", prompt(3, 20), max_tokens=1))
    assert watched(harness)["b"].waits_for == "the next step", "a page for it, and one to spare"
    harness.drain()
    harness.submit(make_request("d", prompt(2), max_tokens=2))
    harness.turn()
    harness.submit(make_request("c", prompt(7, 20), max_tokens=1))
    assert watched(harness)["c"].waits_for == "pages", "two pages for it, and none to spare"
    harness.drain()


def test_a_slot_of_its_own() -> None:
    harness = Harness(make_limits(max_num_seqs=3, num_slots=1))
    harness.submit(make_request("a", prompt(4), max_tokens=4), make_request("b", prompt(4, 9), max_tokens=4))
    harness.turn()
    assert watched(harness)["b"].waits_for == "a slot"
    harness.drain()


def test_a_prefix_that_another_computes() -> None:
    harness = Harness(make_limits(max_num_batched_tokens=8, num_slots=0), prefix_reuse=True)
    harness.submit(make_request("a", prompt(21), max_tokens=2))
    harness.submit(make_request("b", (*prompt(20), 90), max_tokens=2))
    seen = [watched(harness)["b"].waits_for]
    while not harness.ended:
        harness.turn()
        seen += [live.waits_for for live in harness.scheduler.live_requests() if live.id == "b"]
    assert "the prefix that row 1 computes" in seen
    harness.drain()


def test_rows_that_sit_out_say_so() -> None:
    """Three grow, and there are pages for two: one is pre-empted, another sits out until pages come back."""
    harness = Harness(make_limits(num_pages=7, num_slots=0, max_num_batched_tokens=8), depth=2)
    harness.submit(*(make_request(f"{first}", prompt(6, first), max_tokens=14) for first in (1, 20, 40)))
    seen, preemptions = set(), 0
    while harness.scheduler.has_work:
        harness.turn()
        live = harness.scheduler.live_requests()
        seen |= {request.waits_for for request in live if request.row is not None}
        preemptions = max([preemptions, *(request.preemptions for request in live)])
    assert seen == {"", "a place in a step", "its last step, to make room for others"} and preemptions


def test_a_row_in_flight_waits_for_nothing() -> None:
    harness = Harness(make_limits(), depth=1)
    harness.submit(make_request("a", prompt(5), max_tokens=3))
    harness.turn()
    assert harness.device.in_flight and watched(harness)["a"].waits_for == ""
    harness.drain()


def test_what_was_resumed_and_why_not_more() -> None:
    harness = Harness(make_limits(), prefix_reuse=True)
    for name in "ab":
        harness.submit(make_request(name, prompt(9), max_tokens=3))
        harness.turn()
        [live] = harness.scheduler.live_requests()
        told = (live.cached_tokens, live.cache_reason)
        harness.drain()
    assert told == (8, "resumed at 8, as far as the prompt was computed before")


def test_outcomes_are_counted_once_a_request() -> None:
    harness = Harness(make_limits(), prefix_reuse=True)
    for name, given in (("a", prompt(9)), ("b", prompt(9)), ("c", prompt(9, 50))):
        harness.submit(make_request(name, given, max_tokens=2))
        harness.drain()
    outcomes = harness.cache.stats().counters.outcomes
    assert outcomes == {
        "no page of this prompt was computed before": 2,
        "as far as the prompt was computed before": 1,
    }
    harness.submit(make_request("d", prompt(9), max_tokens=2, prompt_logprobs=0))
    harness.drain()
    assert sum(outcomes.values()) == 3, "a copy: it does not change later"
    assert harness.cache.stats().counters.outcomes["every token of the prompt has to be scored"] == 1
