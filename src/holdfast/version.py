"""Which Holdfast this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
