"""Calls of tools, put together as a client does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.text import Part


def joined(parts: Sequence[Part]) -> list[tuple[str, Any]]:
    """Arguments that do not parse stay the text that they are."""
    calls: list[tuple[str, str]] = []
    for piece in [part.call for part in parts if part.call]:
        if piece.name is not None:
            calls.append((piece.name, piece.arguments))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    return [(name, parsed(arguments)) for name, arguments in calls]


def parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
