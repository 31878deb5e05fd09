"""Options of an adaptive depth: what they mean, and what is refused, with the place."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.adaptive import AdaptiveConfig, Band
from holdfast.config import ConfigError, EngineConfig, SpeculativeConfig
from holdfast.scheduler.cost_depth import CostDepth
from holdfast.scheduler.depth import make_depth
from holdfast.scheduler.ema_depth import EmaDepth


def config(adaptive: object, *, initial: int = 3) -> SpeculativeConfig:
    return SpeculativeConfig.of({"method": "ngram", "num_speculative_tokens": initial, "adaptive": adaptive})


def adaptive(given: object, *, initial: int = 3) -> AdaptiveConfig:
    found = config(given, initial=initial).adaptive
    assert found is not None
    return found


@pytest.mark.parametrize("given", [True, {}, {"candidate_steps": []}, {"candidate_steps": {}}])
def test_nothing_means_the_default(given: object) -> None:
    found = adaptive(given)
    assert found.bands == (Band(1, (0, 1, 3, 7)),) and found.policy == "cost"
    numbers = (found.ema_alpha, found.update_interval, found.warmup_batches)
    assert numbers == (0.2, 5, 10)
    assert found.depths(1) == found.depths(900) == found.all_depths == (0, 1, 3, 7)


@pytest.mark.parametrize("given", [None, False])
def test_a_depth_is_fixed_unless_it_is_adaptive(given: object) -> None:
    found = config(given)
    assert found.adaptive is None and found.depths == (3,)


def test_candidates_are_sorted_and_none_is_twice() -> None:
    assert adaptive({"candidate_steps": [5, 3, 0, 5]}).depths(1) == (0, 3, 5)


def test_bands_by_rows() -> None:
    found = adaptive({"candidate_steps": {"32": [0, 1], "8": [3, 0, 1], "64": [0], "4": [1, 3, 7]}})
    assert [found.depths(rows) for rows in (1, 4, 7)] == [(1, 3, 7)] * 3
    assert [found.depths(rows) for rows in (8, 31, 32, 63, 64, 500)] == [
        *[(0, 1, 3)] * 2,
        *[(0, 1)] * 2,
        *[(0,)] * 2,
    ]
    assert found.all_depths == (0, 1, 3, 7)


def test_the_initial_depth_is_a_candidate_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    engine = EngineConfig(
        speculative_config={  # type: ignore[arg-type]
            "method": "ngram",
            "num_speculative_tokens": 2,
            "adaptive": {"candidate_steps": {"1": [0, 5], "9": [0]}},
        }
    )
    assert engine.depths == (0, 2, 5) and engine.max_drafts == 5
    assert [record.getMessage() for record in caplog.records] == [
        "adaptive depth: 2, the initial one, is added to the candidates (0, 5)"
    ]
    caplog.clear()
    adaptive({"candidate_steps": [3]})
    assert not caplog.records


def test_a_file(tmp_path: Path) -> None:
    options = {
        "candidate_steps": {"1": [2, 4]},
        "policy": "ema",
        "ema_alpha": 0.5,
        "update_interval": 2,
        "warmup_batches": 0,
        "up_hysteresis": 0.1,
        "down_hysteresis": -0.5,
    }
    (tmp_path / "depth.json").write_text(json.dumps(options))
    found = adaptive(str(tmp_path / "depth.json"), initial=4)
    assert found == AdaptiveConfig("ema", (Band(1, (2, 4)),), 0.5, 2, 0, 0.1, -0.5)
    assert isinstance(make_depth(config(str(tmp_path / "depth.json")), ragged=True), EmaDepth)
    assert isinstance(make_depth(config(True), ragged=True), CostDepth)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (7, "adaptive: 7 must be true, a mapping of options, or the name of a JSON file with one"),
        (
            {"candidates": [1]},
            "adaptive: there is no 'candidates'; there are candidate_steps, policy, ema_alpha",
        ),
        ({"policy": "best"}, "policy='best' is not one of cost, ema"),
        ({"ema_alpha": 0}, "ema_alpha=0 must be more than 0, and at most 1"),
        ({"ema_alpha": True}, "ema_alpha=True must be more than 0"),
        ({"update_interval": 0}, "update_interval=0 must be a whole number, at least 1"),
        ({"warmup_batches": 1.5}, "warmup_batches=1.5 must be a whole number, at least 0"),
        ({"up_hysteresis": "much"}, "up_hysteresis='much' must be a number of drafts"),
        (
            {"candidate_steps": "1,3"},
            "candidate_steps='1,3' must be a list of numbers of drafts, like [0, 1, 3]",
        ),
        ({"candidate_steps": [1, 16]}, "candidate_steps[1]=16 must be a whole number from 0 to 15"),
        ({"candidate_steps": [1, -1]}, "candidate_steps[1]=-1 must be a whole number from 0 to 15"),
        (
            {"candidate_steps": {"1": [0], "8": [1, "3"]}},
            "candidate_steps['8'][1]='3' must be a whole number",
        ),
        ({"candidate_steps": {"many": [0]}}, "candidate_steps: 'many' must be a number of rows, as a string"),
        ({"candidate_steps": {8: [0]}}, "candidate_steps: 8 must be a number of rows, as a string"),
        ({"candidate_steps": {"0": [0]}}, "candidate_steps: '0' must be a number of rows"),
        ({"candidate_steps": {"8": [0], "08": [1]}}, "candidate_steps: 8 rows are there twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(given)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"ema_alpha": 0.2,\n "policy": }', "depth.json is not JSON: line 2, column 12: Expecting value"),
        ("[0, 1]", "depth.json: [0, 1] must be true, a mapping"),
        ('{"candidate_steps": {"8": [99]}}', "depth.json: candidate_steps['8'][0]=99 must be"),
        (None, "depth.json: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_with_the_place(
    tmp_path: Path, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "depth.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        config(str(tmp_path / "depth.json"))
    assert sentence in str(caught.value)


def test_windows_of_the_largest_candidate_must_fit_the_grid() -> None:
    options: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 1, "adaptive": True}
    with pytest.raises(ConfigError, match="a candidate of adaptive=7 makes windows of 8 tokens"):
        EngineConfig(speculative_config=options, fold_every=4)  # type: ignore[arg-type]
