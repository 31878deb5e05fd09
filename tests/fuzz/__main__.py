"""python -m tests.fuzz run [MINUTES] | replay FILE"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, settings

from .machine import DRAFTERS, drafters, fuzz, table
from .models import MODELS
from .world import Script, replay

FAILURE = Path(tempfile.gettempdir()) / "holdfast-fuzz-failure.json"
PAIRS = [(model, drafter) for drafter in DRAFTERS for model in MODELS if drafter in drafters(model)]
ROUND = 5
"""Runs between looks at the clock."""


def run(minutes: float) -> None:
    until = time.monotonic() + 60 * minutes
    covered: Counter[str] = Counter()
    try:
        for model, drafter in itertools.cycle(PAIRS):
            if time.monotonic() > until:
                break
            covered.update(fuzz(model, profile(), FAILURE, drafter_names=[drafter]))
            print(f"{covered['runs']:,} runs, {covered['steps']:,} steps, no findings", flush=True)
    finally:
        print(table(covered))


def profile() -> settings:
    return settings(
        max_examples=ROUND,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def main(argv: list[str]) -> int:
    torch.set_num_threads(1)
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # pools are small on purpose
    match argv:
        case ["run"]:
            run(10)
        case ["run", minutes]:
            run(float(minutes))
        case ["replay", file]:
            print(table(replay(Script.read(Path(file))).covered))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
