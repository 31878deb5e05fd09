"""docs/museum.md, from the faults themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .fault import Fault
from .museum import ROOMS

PAGE = Path(__file__).parents[2] / "docs" / "museum.md"

HEAD = """\
# The museum

Defects that serving engines have had with recurrent state and KV caches, planted in this one. Each is a small patch,
applied by a test (`tests/faults`), never a hook in the product. For every exhibit the tests show that

- without guards it changes what the engine says, or what a drafter guesses: a harmless fault would prove nothing;
- with guards it is caught, by what the last column names; and of the faults that `stamps` catch, no request that
  was not ended has a wrong token;
- without the fault, the same requests end with the same tokens and nothing is found.

`stamps` and `full` are modes of the [sanitizer](sanitizer.md). Where a test is named, the fault is in what an
operation means and not in the places it touches; the sanitizer cannot see that, or what it takes to
show the fault in a whole engine is not there yet, and the test fails with the fault planted.

This page is written by `python -m tests.faults`.
"""


def render() -> str:
    return "\n".join([HEAD, *(line for title, faults in ROOMS.items() for line in _room(title, faults))])


def _room(title: str, faults: tuple[Fault, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| fault | published | what it does here | caught by |"
    yield "| --- | --- | --- | --- |"
    for fault in faults:
        by = f"`{fault.caught_by}`"
        yield f"| `{fault.name}` | {fault.published} | {fault.here} | {by} |"
    yield ""
