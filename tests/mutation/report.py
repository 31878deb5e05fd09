"""docs/mutation.md: how many mutants die, and why those that live may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .mutants import Mutant

LEAST_KILLED = 0.9

Reasons = dict[tuple[str, str, str, str], str]

HEAD = """\
# Mutation testing

`make mutate` changes the code that owns and moves state in small ways, one at a time ([mutmut](https://github.com/boxed/mutmut)'s
defaults), and runs the tests whose subject that code is. A change that no test notices is a survivor; it is
listed here, with the reason why it may live. The reasons are in `tests/mutation/reasons.txt`. This page is generated.
"""


def read_reasons(path: Path) -> Reasons:
    """Blocks of `file function`, the lines before (-) and after (+) the change, and the reason (=)."""
    reasons: Reasons = {}
    for block in path.read_text().split("\n\n") if path.exists() else []:
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            before, after, reason = ("\n".join(_marked(lines, mark)) for mark in "-+=")
            file, function = lines[0].split(maxsplit=1)
            reasons[file, function, before, after] = reason
    return reasons


def _marked(lines: Sequence[str], mark: str) -> Iterator[str]:
    return (line[2:] for line in lines[1:] if line.startswith(mark))


def as_block(mutant: Mutant, reason: str) -> str:
    """What `read_reasons` reads."""
    changed = [f"- {line}" for line in mutant.before.splitlines()]
    changed += [f"+ {line}" for line in mutant.after.splitlines()]
    return "\n".join([f"{mutant.file} {mutant.function}", *changed, f"= {reason}"])


def share_killed(mutants: Sequence[Mutant]) -> float:
    return sum(mutant.dead for mutant in mutants) / max(1, len(mutants))


def render(mutants: Sequence[Mutant], reasons: Reasons) -> str:
    files = dict.fromkeys(mutant.file for mutant in mutants)
    table = ["| file | mutants | killed | survived | |", "| --- | ---: | ---: | ---: | ---: |"]
    for file in files:
        table.append(_row(f"`{file}`", [mutant for mutant in mutants if mutant.file == file]))
    table.append(_row("**all**", mutants))
    survivors = [mutant for mutant in mutants if not mutant.dead]
    parts = [HEAD, "\n".join(table) + "\n", "## Survivors\n"]
    parts += [_survivor(mutant, reasons.get(mutant.key)) for mutant in survivors] or ["None.\n"]
    return "\n".join(parts)


def _row(name: str, mutants: Sequence[Mutant]) -> str:
    dead = sum(mutant.dead for mutant in mutants)
    return f"| {name} | {len(mutants)} | {dead} | {len(mutants) - dead} | {share_killed(mutants):.1%} |"


def _survivor(mutant: Mutant, reason: str | None) -> str:
    heading = f"**{mutant.file}:{mutant.line}** `{mutant.function}`: {reason or '*no reason given*'}\n"
    changed = [f"- {line}" for line in mutant.before.splitlines()]
    changed += [f"+ {line}" for line in mutant.after.splitlines()]
    return "\n".join([heading, "```diff", *changed, "```", ""])
