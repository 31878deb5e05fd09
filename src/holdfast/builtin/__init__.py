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


def builtin_models() -> dict[str, Path]:
    """Models and drafters, by name."""
    return {path.name: path for path in sorted(_HERE.iterdir()) if (path / "config.json").is_file()}
