"""The report's own parts; the mutants themselves are `make mutate`'s."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.mutants import Mutant, _difference
from tests.mutation.report import as_block, read_reasons, render, share_killed

KILLED = Mutant("cache/a.py", "f", 3, "x = 1", "x = 2", "killed")
ALIVE = Mutant("cache/a.py", "C.g", 9, "y = (\n1)", "y = (\n2)", "survived")
REASONS = Path(__file__).with_name("reasons.txt")


def test_reasons_are_found_again_by_what_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "reasons.txt"
    path.write_text(f"# a comment\n\n{as_block(ALIVE, 'it is the same')}\n\n{as_block(KILLED, 'none')}\n")
    assert read_reasons(path) == {ALIVE.key: "it is the same", KILLED.key: "none"}
    assert read_reasons(tmp_path / "missing.txt") == {}


def test_the_reasons_that_are_kept_can_be_read() -> None:
    reasons = read_reasons(REASONS)
    assert reasons and all(reasons.values())
    assert all(before != after for _, _, before, after in reasons)


def test_a_report_counts_and_explains() -> None:
    page = render([KILLED, ALIVE], {ALIVE.key: "it is the same"})
    assert "| `cache/a.py` | 2 | 1 | 1 | 50.0% |" in page
    assert "**cache/a.py:9** `C.g`: it is the same" in page and "- y = (" in page and "+ 2)" in page
    assert "*no reason given*" in render([ALIVE], {})
    assert "None.\n" in render([KILLED], {})
    assert share_killed([KILLED, ALIVE]) == 0.5


def test_where_two_versions_of_a_function_differ() -> None:
    before = ["@property", "def f__mutmut_orig(self):", "    a = 1", "    b = 2", "    return a"]
    after = ["@property", "def f__mutmut_1(self):", "    a = 1", "    b = 3", "    return a"]
    assert _difference(before, after) == (3, "b = 2", "b = 3")
    longer = ["def f__mutmut_2(self):", "    g(", "        1,", "    )"]
    shorter = ["def f__mutmut_3(self):", "    g(", "    )"]
    assert _difference(longer, shorter) == (2, "1,", "")
