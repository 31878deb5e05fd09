"""Models and their oracles, each made once a session."""

from __future__ import annotations

from pathlib import Path

from .models import MODELS, build
from .oracle import Oracle

SHARDED = "100KB"
"""Small enough that every model comes in several files."""


class Library:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._oracles: dict[Path, Oracle] = {}

    def directory(self, name: str, *, seed: int = 0, sharded: bool = False) -> Path:
        """A named model in hub format: the same weights for the same seed, in one file or in several."""
        directory = self._root / f"{name}-{seed}{'-sharded' if sharded else ''}"
        if not directory.exists():
            build(MODELS[name], directory, seed=seed, max_shard_size=SHARDED if sharded else "1GB")
        return directory

    def oracle(self, name: str, *, seed: int = 0) -> Oracle:
        directory = self.directory(name, seed=seed)
        if directory not in self._oracles:
            self._oracles[directory] = Oracle(directory)
        return self._oracles[directory]
