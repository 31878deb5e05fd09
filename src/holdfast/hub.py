"""Where a model's files are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .builtin import SMALL, builtin_models

PREFIX = "models--"


def find_model(model: str | Path | None) -> Path:
    """A directory; or the name of a built-in model, or one as the hub has it, whose files were downloaded before.

    None: the built-in model that is the default.
    """
    if model is None:
        return SMALL
    if not isinstance(model, (str, Path)):
        raise TypeError(f"model must be the path of a directory, or None for the built-in one, not {model!r}")
    path, name = Path(model).expanduser(), str(model)
    return path if path.exists() else builtin_models().get(name) or _newest_snapshot(name) or path


def downloaded_models() -> Iterator[tuple[str, Path]]:
    """Names and directories of what the hub's client has in its cache."""
    for path in sorted(_cache().glob(f"{PREFIX}*")):
        name = path.name.removeprefix(PREFIX).replace("--", "/")
        if directory := _newest_snapshot(name):
            yield name, directory


def _newest_snapshot(name: str) -> Path | None:
    """Nothing is fetched."""
    snapshots = _cache() / f"{PREFIX}{name.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob("*") if (path / "config.json").is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
