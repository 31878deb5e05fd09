"""Models that come with Holdfast: directories as the hub has them, with a card (README.md) beside the weights."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
SMALL = _HERE / "holdfast-small"
"""What is served if no model is named."""
TINY_LFM2 = _HERE / "holdfast-tiny-lfm2"

NOTICE = (
    f"This is {SMALL.name}, a model of 8 million parameters: it talks simply, remembers what it is told, and "
    "knows next to nothing."
)


def builtin_model(name: str) -> Path | None:
    """Of a model or drafter that is here, by its name."""
    return next((path for path in _HERE.iterdir() if path.name == name and path.is_dir()), None)
