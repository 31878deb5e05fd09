"""Runs mutmut over a suite in a copy of the source tree, and reads what became of its mutants."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .suites import Suite

ROOT = Path(__file__).parents[2]
EXAMPLES = "15"
"""Of a property, for each mutant: the same in every run, and a tenth of what the tests take."""

RESULTS: dict[int | None, str] = {
    **dict.fromkeys((1, 3), "killed"),
    **dict.fromkeys((36, 24, 152, 255, -24), "timeout"),
    **dict.fromkeys((5, 33), "no tests"),
    0: "survived",
}
"""What the exit status of a mutant's tests means."""

# mutmut 3.8 asks an item for the private name that pytest 9 no longer has
SHIM = "\n\npytest.Item._nodeid = property(lambda item: item.nodeid)\n"


@dataclass(frozen=True)
class Mutant:
    file: str
    """Below src/holdfast."""
    function: str
    line: int
    before: str
    after: str
    """The lines that differ, without indentation."""
    result: str
    """One of RESULTS; or another status, and nobody knows."""

    @property
    def dead(self) -> bool:
        return self.result in ("killed", "timeout")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The same as long as its line stays as it is, wherever that goes."""
        return (self.file, self.function, self.before, self.after)


def run(suite: Suite, scratch: Path, processes: int) -> list[Mutant]:
    """Every mutant of the suite. The working tree is copied, and only the copy is touched."""
    _copy(suite, scratch)
    mutmut = [sys.executable, "-m", "mutmut"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "HOLDFAST_EXAMPLES": EXAMPLES}
    done = subprocess.run(
        [*mutmut, "run", "--max-children", str(processes)], cwd=scratch, env=environment, check=False
    )
    if done.returncode:
        raise SystemExit(f"mutmut ended with status {done.returncode}; the copy is {scratch}")
    return list(_read(scratch))


def _copy(suite: Suite, scratch: Path) -> None:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = {
        "source_paths": ["src"],
        "only_mutate": [f"src/holdfast/{file}" for file in suite.files],
        "pytest_add_cli_args": ["-x", "-p", "no:cacheprovider", "--hypothesis-seed=0"],
        "pytest_add_cli_args_test_selection": list(suite.tests),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    lines.append("use_git_change_detection = false")
    project = (ROOT / "pyproject.toml").read_text() + "\n[tool.mutmut]\n" + "\n".join(lines) + "\n"
    (scratch / "pyproject.toml").write_text(project)
    with (scratch / "tests" / "conftest.py").open("a") as conftest:
        conftest.write(SHIM)


def _read(scratch: Path) -> Iterator[Mutant]:
    mutated = scratch / "mutants" / "src" / "holdfast"
    for meta in sorted(mutated.rglob("*.py.meta")):
        file = str(meta.relative_to(mutated)).removesuffix(".meta")
        original = _functions(scratch / "src" / "holdfast" / file)
        bodies = _functions(mutated / file)
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            yield _mutant(file, name.rpartition(".")[2], code, original, bodies)


def _mutant(
    file: str, name: str, code: int | None, original: dict[str, _Body], bodies: dict[str, _Body]
) -> Mutant:
    mangled, _, _ = name.rpartition("__mutmut_")
    function = mangled.removeprefix("xǁ").replace("ǁ", ".").removeprefix("x_")
    orig, plain = f"{mangled}__mutmut_orig", function.rpartition(".")[2]
    at, before, after = _difference(bodies[orig].lines, bodies[name].lines)
    return Mutant(
        file=file,
        function=function,
        line=original[function].first + at,
        before=before.replace(orig, plain),
        after=after.replace(name, plain),
        result=RESULTS.get(code, f"status {code}"),
    )


@dataclass(frozen=True)
class _Body:
    first: int
    lines: list[str]


def _functions(path: Path) -> dict[str, _Body]:
    """Functions and methods by their qualified names; mutmut's copies go by their mangled names alone."""
    source = path.read_text()
    lines, found = source.splitlines(), {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                name = child.name if "__mutmut_" in child.name else prefix + child.name
                found[name] = _Body(first, lines[first - 1 : child.end_lineno])
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.If, ast.Try)):
                walk(child, prefix)

    walk(ast.parse(source), "")
    return found


def _difference(before: list[str], after: list[str]) -> tuple[int, str, str]:
    """The first line that differs, and all that do; the line with the name always does."""
    first = 1 + next(i for i, line in enumerate(before) if re.match(r"\s*(async )?def ", line))
    head = first
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    if head == len(before) == len(after):  # in a parameter's default, on the line with the name
        head, tail = first - 1, len(before) - first
    strip = "\n".join
    return (
        head,
        strip(line.strip() for line in before[head : len(before) - tail]),
        strip(line.strip() for line in after[head : len(after) - tail]),
    )
