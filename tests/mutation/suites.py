"""What is mutated, and which tests must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suite:
    """Files of src/holdfast, and the tests that are run for them: the fast ones whose subject they are."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


HOST = ("tests/host", "--ignore=tests/host/test_soak.py", "--ignore=tests/host/test_reuse_traffic.py")
"""Without those that take long and have the traffic itself as their subject."""

SUITES = {
    "cache": Suite(("cache/*.py",), HOST),
    "scheduler": Suite(("scheduler/*.py",), HOST),
    "pool": Suite(("memory/state_pool.py",), ("tests/memory/test_pool.py", "tests/memory/test_writes.py")),
}
