"""Imports go one way: downward in the drawing of docs/architecture.md."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "holdfast"

SHARED = {"ids", "units", "adaptive", "config", "resolve", "structured", "params", "corruption"}
SHARED |= {"request", "plan"}
HOST = SHARED | {"cache", "scheduler"}
OPS = SHARED | {"ops"}
MEMORY = OPS | {"memory"}
LAYERS = MEMORY | {"distributed", "layers"}
MODELS = LAYERS | {"progress", "models"}
SPEC = MODELS | {"spec"}
DEVICE = SPEC | {"grammar", "executor"}
BLUEPRINT = DEVICE | {"cpu_isa", "blueprint"}
INTAKE = SHARED | {"text", "prompts", "answer", "defaults", "intake"}
START = BLUEPRINT | {"start"}
ENGINE = HOST | START | INTAKE | {"hub", "engine"}
SERVER = HOST | INTAKE | {"hub", "version", "server"}
SURFACE = ENGINE | SERVER | {"service", "llm", "async_engine", "bench"}
SURFACE |= {"builtin", "verify", "eval", "cli", "__init__"}

MAY_IMPORT: dict[str, set[str]] = {
    # both columns share these
    **{unit: SHARED for unit in SHARED},
    # the host column
    "cache": SHARED | {"cache"},
    "scheduler": HOST,
    # the device column
    "ops": OPS,
    "memory": MEMORY,
    "distributed": SHARED | {"distributed"},
    "layers": LAYERS,
    "models": MODELS,
    "spec": SPEC,
    "executor": DEVICE,
    # beside the columns
    "text": {"text"},
    "grammar": SHARED | {"text"},
    "cpu_isa": set(),
    "progress": set(),
    "prompts": set(),
    "version": set(),
    "builtin": set(),
    "hub": {"builtin"},
    # above them
    "blueprint": BLUEPRINT,
    "start": START,
    "engine": ENGINE,
    "answer": SHARED | {"text", "answer"},
    "defaults": SHARED,
    "intake": INTAKE,
    "service": ENGINE | {"service"},
    "llm": ENGINE | {"service", "llm"},
    "async_engine": ENGINE | {"service", "async_engine"},
    "verify": ENGINE | {"verify"},
    "eval": ENGINE | {"llm", "verify", "eval"},
    "__init__": SHARED | {"llm", "async_engine"},
    "server": SERVER | {"engine"},  # which its own process has; the server's has no torch
    "bench": ENGINE | {"llm", "bench"},
    "cli": SURFACE,
    "__main__": {"cli"},
}


@dataclass(frozen=True)
class Import:
    unit: str  # the module or package of holdfast that imports; "" for one outside it
    line: int
    target: str  # a unit of holdfast, or another top-level package
    inside: bool  # is the target holdfast's?


def imports_of(path: Path, package: Path) -> Iterator[Import]:
    """Every import in a file: at the top, inside functions, and under TYPE_CHECKING as well."""
    parts = path.relative_to(package).with_suffix("").parts
    here = [package.name, *parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in _imported_names(node, here):
            head, _, rest = name.partition(".")
            inside = head == package.name
            target = _unit(rest, package) if inside else head
            yield Import(parts[0], getattr(node, "lineno", 0), target, inside)


def _imported_names(node: ast.AST, here: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = here[: len(here) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{module}.{alias.name}" for alias in node.names]
    return []


def _unit(rest: str, package: Path) -> str:
    """`ops.norm.rms` is of the unit `ops`; a name that is no module comes from the package's `__init__`."""
    unit = rest.partition(".")[0]
    is_module = (package / unit).is_dir() or (package / f"{unit}.py").is_file() or unit in MAY_IMPORT
    return unit if rest and is_module else "__init__"


def violations(package: Path) -> list[str]:
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        unit = where.with_suffix("").parts[0]
        if unit not in MAY_IMPORT:
            found.append(f"{where}: '{unit}' has no place yet; say in MAY_IMPORT what it may import")
            continue
        found += [
            f"{where}:{it.line}: {reason}" for it in imports_of(path, package) if (reason := _wrong(it))
        ]
    return found


def _wrong(it: Import) -> str | None:
    if it.inside:
        allowed = it.target in MAY_IMPORT[it.unit]
        return None if allowed else f"'{it.unit}' must not import '{it.target}'"
    if it.unit in HOST and it.target not in sys.stdlib_module_names:
        return f"'{it.unit}' is of the host column and must not import '{it.target}'"
    if it.target == "training":
        return "training is how the models were made; the engine does not use it"
    if it.target == "transformers" and it.unit != "verify":
        return "transformers is what the engine is compared with; it does not use it"
    return None


def test_imports_go_downward() -> None:
    assert violations(PACKAGE) == []


def test_the_table_is_of_modules_that_may_exist() -> None:
    targets = set().union(*MAY_IMPORT.values())
    assert targets <= set(MAY_IMPORT)


def test_the_device_column_never_sees_the_host_column() -> None:
    deciders = {"cache", "scheduler", "engine"}
    assert not any(MAY_IMPORT[unit] & deciders for unit in DEVICE)


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("cache/radix.py", "import torch", "'cache' is of the host column and must not import 'torch'"),
        ("plan.py", "import numpy as np", "'plan' is of the host column and must not import 'numpy'"),
        ("scheduler/scheduler.py", "from ..executor import runner", "'scheduler' must not import 'executor'"),
        (
            "executor/runner.py",
            "from holdfast.scheduler import Scheduler",
            "'executor' must not import 'scheduler'",
        ),
        ("executor/runner.py", "import holdfast.cache.pages", "'executor' must not import 'cache'"),
        ("executor/runner.py", "def f():\n    from .. import cache", "'executor' must not import 'cache'"),
        ("ops/norm/rms.py", "from ...memory.spec import StateSpec", "'ops' must not import 'memory'"),
        ("models/lfm2.py", "from holdfast import LLM", "'models' must not import '__init__'"),
        ("memory/spec.py", "from ..layers import linear", "'memory' must not import 'layers'"),
        ("text/chat.py", "import transformers", "transformers is what the engine is compared with"),
        ("models/dummy.py", "from training import hub", "training is how the models were made"),
        ("gadgets.py", "", "'gadgets' has no place yet"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str, expected: str) -> None:
    path = tmp_path / "holdfast" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    [found] = violations(tmp_path / "holdfast")
    assert expected in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("cache/radix.py", "import heapq\nfrom ..ids import Page\nfrom .pages import Pages"),
        ("models/lfm2.py", "import torch\nfrom ..layers.attention import Attention\nfrom . import base"),
        ("engine.py", "from .scheduler import Scheduler\nfrom .executor.runner import Runner"),
        ("cli.py", "from holdfast import LLM, SamplingParams"),
    ],
)
def test_an_import_in_order_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / "holdfast" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path / "holdfast") == []
