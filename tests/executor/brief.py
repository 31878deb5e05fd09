"""Steps that are called brief, whatever they take: so that two of them stay in flight."""

from __future__ import annotations

from holdfast.executor.readback import Laps


class Brief(Laps):
    brief = True  # type: ignore[assignment]
