"""Every fault of the museum: harmful without guards, caught with them; and without it, nothing is found."""

from __future__ import annotations

import pytest

from .fault import Fault
from .harness import Outcome, healthy, run
from .museum import FAULTS
from .page import PAGE, render


def params(*kinds: str) -> list[object]:
    chosen = [f for f in FAULTS if (f.caught_by if f.caught_by in ("stamps", "full") else "test") in kinds]
    return [pytest.param(f, id=f.name, marks=pytest.mark.slow if f.slow else ()) for f in chosen]


def assert_harmful(fault: Fault, found: Outcome) -> None:
    assert found.tokens != healthy(fault.scene).tokens, "a harmless fault proves nothing"


def assert_no_false_alarm(fault: Fault, sanitizer: str) -> None:
    guarded = healthy(fault.scene, sanitizer)
    assert not guarded.findings
    assert guarded.tokens == healthy(fault.scene).tokens


@pytest.mark.parametrize("fault", params("stamps"))
def test_stamps_catch(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is handed a wrong answer: who was not ended has the right tokens."""
    expected = healthy(fault.scene).tokens
    assert_no_false_alarm(fault, "stamps")
    fault.plant(monkeypatch)
    assert_harmful(fault, run(fault.scene))
    found = run(fault.scene, "stamps")
    assert found.findings
    for right, tokens, error in zip(expected, found.tokens, found.errors, strict=True):
        assert error or tokens == right, "a wrong answer, and no finding"


@pytest.mark.parametrize("fault", params("full"))
def test_full_catches(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_no_false_alarm(fault, "full")
    fault.plant(monkeypatch)
    assert_harmful(fault, run(fault.scene))
    assert not run(fault.scene, "stamps").findings, "stamps see it too: say so"
    assert run(fault.scene, "full").findings


@pytest.mark.parametrize("fault", params("test"))
def test_a_contract_catches(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that is in what the operation means, not in what it is given."""
    assert fault.contract is not None
    fault.contract()
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        fault.contract()


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m tests.faults"


def test_names_are_unique() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
