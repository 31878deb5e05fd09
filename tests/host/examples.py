"""How many examples, and which: the same in every run, unless HOLDFAST_EXAMPLES asks for so many new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_WANTED = os.environ.get("HOLDFAST_EXAMPLES")

EXAMPLES = settings(
    max_examples=int(_WANTED or 150),
    derandomize=_WANTED is None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
