"""Where a model's files are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PREFIX = "models--"


def find_model(model: str | Path | None) -> Path:
    """A directory; or a name as the hub has it, whose files were downloaded before. None: the built-in one."""
    if isinstance(model, (str, Path)):
        path = Path(model).expanduser()
        return path if path.exists() else _newest_snapshot(str(model)) or path
    if model is not None:
        raise TypeError(f"model must be the path of a directory, or None for the demo model, not {model!r}")
    from .models.demo import demo_model_dir

    return demo_model_dir()


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
