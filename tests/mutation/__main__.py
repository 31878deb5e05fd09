"""Mutate, test, and say what survived. docs/mutation.md is of all suites: of those not run now, as they last ran."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from .mutants import ROOT, Mutant, run
from .report import LEAST_KILLED, as_block, read_reasons, render, share_killed
from .suites import SUITES

REASONS = Path(__file__).with_name("reasons.txt")
REPORT = ROOT / "docs" / "mutation.md"
RESULTS = ROOT / "build" / "mutation"
"""What became of each suite's mutants when it was last run."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--report", action="store_true", help="run nothing, write the report again")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(default: %(default)s)")
    args = parser.parse_args()
    if unknown := set(args.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(unknown)}")
    for name in [] if args.report else args.suites or SUITES:
        with tempfile.TemporaryDirectory(prefix=f"holdfast-mutate-{name}-") as scratch:
            save(name, run(SUITES[name], Path(scratch), args.processes))
    return report([mutant for name in SUITES for mutant in load(name)])


def save(name: str, mutants: list[Mutant]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps([dataclasses.asdict(mutant) for mutant in mutants]))


def load(name: str) -> list[Mutant]:
    path = RESULTS / f"{name}.json"
    return [Mutant(**mutant) for mutant in json.loads(path.read_text())] if path.exists() else []


def report(mutants: list[Mutant]) -> int:
    """1 if too many survive, or one does without a reason."""
    reasons = read_reasons(REASONS)
    unexplained = [m for m in mutants if not m.dead and m.key not in reasons]
    for mutant in unexplained:
        print(f"\n# line {mutant.line}, {mutant.result}\n{as_block(mutant, '')}")
    print(
        f"\n{len(mutants)} mutants, {share_killed(mutants):.1%} killed, {len(unexplained)} without a reason"
    )
    REPORT.write_text(render(mutants, reasons))
    return 1 if unexplained or share_killed(mutants) < LEAST_KILLED else 0


if __name__ == "__main__":
    sys.exit(main())
