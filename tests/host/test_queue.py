from __future__ import annotations

from holdfast.request import Request, SamplingParams
from holdfast.scheduler.queue import WaitingQueue


def request(arrival: int, priority: int = 0) -> Request:
    return Request(f"{priority}.{arrival}", (1,), SamplingParams(), priority=priority, arrival=arrival)


def test_priority_then_arrival() -> None:
    queue = WaitingQueue()
    for arrival, priority in enumerate([1, 0, 1, -1, 0]):
        queue.push(request(arrival, priority))
    assert [queue.peek(place).id for place in range(2)] == ["-1.3", "0.1"]  # type: ignore[union-attr]
    assert [queue.pop().id for _ in range(len(queue))] == ["-1.3", "0.1", "0.4", "1.0", "1.2"]
    assert queue.peek() is None


def test_those_behind_may_be_taken_out_of_turn() -> None:
    queue = WaitingQueue()
    for arrival in range(3):
        queue.push(request(arrival))
    assert queue.pop(1).arrival == 1
    assert queue.peek(2) is None
    assert [queue.pop().arrival for _ in range(2)] == [0, 2]


def test_a_preempted_request_returns_to_its_place() -> None:
    queue = WaitingQueue()
    for arrival in range(4):
        queue.push(request(arrival))
    first = queue.pop()
    second = queue.pop()
    queue.push(second)
    queue.push(first)
    assert [queue.pop().arrival for _ in range(4)] == [0, 1, 2, 3]


def test_discard() -> None:
    queue = WaitingQueue()
    for arrival in range(3):
        queue.push(request(arrival))
    assert queue.discard("0.1")
    assert not queue.discard("0.1")
    assert [queue.pop().arrival for _ in range(2)] == [0, 2]
