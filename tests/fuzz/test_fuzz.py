"""The fuzzer's fixed seeds, and proof that it finds what is planted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.faults import forms
from tests.faults.fault import Fault
from tests.fuzz.machine import DRAFTERS, fuzz, table
from tests.fuzz.world import Script, replay

from holdfast.memory.state_pool import StatePool
from holdfast.plan import RowStart

MUST_HAPPEN = (
    "accepted drafts",
    "rejected drafts",
    "cancelled after its end",
    "cancelled in flight",
    "cancelled running",
    "cancelled waiting",
    "ended: cancelled",
    "ended: length",
    "ended: stop",
    "evicted checkpoints",
    "evicted pages",
    "grid crossings",
    "hits",
    "pre-emptions",
    "publishes",
    "tokens compared",
    "tokens of answers with a form",
    *(f"runs with {drafter}" for drafter in DRAFTERS),
)


DAILY = (
    ("short-convolution", "none"),
    ("short-convolution", "eagle_multi"),
    ("short-convolution", "another"),
    ("gated-delta", "tree"),
    ("gated-delta", "mtp"),
    ("state-space", "eagle"),
    ("state-space", "itself"),
    ("state-space", "tree"),
    ("attention", "dflash"),
    ("attention", "ngram"),
    ("gated-delta", "restless"),
)
"""Every model, and every kind of drafter."""


def profile(runs: int, *phases: Phase) -> settings:
    return settings(
        max_examples=runs,
        stateful_step_count=20,
        derandomize=True,
        deadline=None,
        database=None,
        report_multiple_bugs=False,  # the first is enough
        phases=phases or [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def test_the_whole_engine_under_random_traffic(tmp_path: Path) -> None:
    covered: Counter[str] = Counter()
    for seed, (model, drafter) in enumerate(DAILY):
        given = {"drafter_names": [drafter], "seed": seed}
        covered.update(fuzz(model, profile(2), tmp_path / "failure.json", **given))
    print(table(covered))
    assert not [what for what in MUST_HAPPEN if not covered[what]]
    assert covered["ties"] < 0.01 * covered["tokens compared"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", forms.FAULTS, ids=lambda fault: fault.name)
def test_faults_of_forms_are_found(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        fuzz(
            "short-convolution",
            profile(60, Phase.generate),
            tmp_path / "failure.json",
            drafter_names=["itself"],
            seed=6,  # which finds all of them soon
        )


def test_a_planted_fault_is_found_and_its_script_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new tenant of a row keeps the journal of the one before it."""
    start = StatePool.start

    def keeps_the_length(pool: StatePool, starts: tuple[RowStart, ...]) -> None:
        rows = [start.row for start in starts]
        before = pool.cursors.length[rows].clone()
        start(pool, starts)
        pool.cursors.length[rows] = before % 2

    script = tmp_path / "failure.json"
    with monkeypatch.context() as patch:
        patch.setattr(StatePool, "start", keeps_the_length)
        with pytest.raises(AssertionError) as found:
            fuzz("gated-delta", profile(60, Phase.generate), script)
        assert f"python -m tests.fuzz replay {script}" in "".join(found.value.__notes__)
        with pytest.raises(AssertionError, match=r"the device stands elsewhere|the sanitizer found"):
            replay(Script.read(script))
    replay(Script.read(script))
