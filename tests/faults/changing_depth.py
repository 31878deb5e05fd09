"""Windows whose length changes while serving, and a drafter that takes the model's config for its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.config import Limits, journal_capacity, max_window
from holdfast.spec import build

from .fault import RESTLESS, SPECULATING, Fault, wrap
from .harness import run
from .wrong_place import stride_of_this_step


def _journals_of_the_initial_depth(patch: pytest.MonkeyPatch) -> None:
    initial = max_window(RESTLESS.drafts)
    patch.setattr(
        Limits, "journal_capacity", property(lambda limits: journal_capacity(limits.fold_every, initial))
    )


def _drafter_edits_the_config(patch: pytest.MonkeyPatch) -> None:
    def editing(plan: Callable[..., Any]) -> Callable[..., Any]:
        def other(config: Any, max_model_len: Any, model: Any) -> Any:
            object.__setattr__(model.config, "eps", 1.0)  # frozen: there is no front door
            return plan(config, max_model_len, model)

        return other

    wrap(patch, build, "_standalone", editing)


def drafting_changes_nothing() -> None:
    """Tokens with a drafter are those without."""
    assert run(SPECULATING).tokens == run(replace(SPECULATING, drafts=0)).tokens


FAULTS = (
    Fault(
        "pool-of-the-initial-depth",
        "SGLang #23331",
        "journals are sized for the depth at start, and windows grow past it",
        "stamps",
        _journals_of_the_initial_depth,
        RESTLESS,
    ),
    Fault(
        "stride-of-the-current-depth",
        "SGLang #23331",
        "the stride of a journal follows the depth from step to step",
        "stamps",
        stride_of_this_step,
        RESTLESS,
    ),
    Fault(
        "drafter-edits-the-config",
        "SGLang #23331",
        "a drafter writes its own numbers into the config that the model is built from",
        "tests/spec/test_standalone.py",
        _drafter_edits_the_config,
        SPECULATING,
        contract=drafting_changes_nothing,
    ),
)
