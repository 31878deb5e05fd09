"""The page about models says what the registry has; nothing else speaks of single models."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from holdfast.models.registry import ARCHITECTURES

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "models.py"
FILES = {Path(sys.modules[a.parse.__module__].__file__ or "") for a in ARCHITECTURES.values()}


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("models_page", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.render()
    assert script.PAGE.read_text(encoding="utf-8") == page, "run make docs"
    assert all(f"`{name}`" in page for name in ARCHITECTURES)


def test_no_file_of_an_architecture_is_long() -> None:
    assert [file for file in FILES if len(file.read_text().splitlines()) > 350] == []


def test_no_model_is_named_where_none_is_made() -> None:
    package = ROOT / "src" / "holdfast"
    families = {file.stem.partition("_")[0] for file in FILES}
    assert len(families) > 5
    for file in package.rglob("*.py"):
        if file.relative_to(package).parts[0] not in ("models", "layers", "builtin"):
            named = [family for family in families if family in file.read_text().lower()]
            assert not named, f"{file} names {named}"
