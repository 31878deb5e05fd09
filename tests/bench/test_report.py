"""The arithmetic of a report."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from holdfast.bench.report import Outcome, draw, percentile, render, summary


def outcome(ttft: float, tokens: int, step: float) -> Outcome:
    end = ttft + step * (tokens - 1)
    return Outcome(None, ttft, end, [step] * (tokens - 1), prompt_tokens=10, output_tokens=tokens)


def test_percentiles_are_between_the_nearest() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0, 50, 100)] == [1.0, 2.5, 4.0]
    assert percentile(values, 90) == pytest.approx(3.7) and percentile([], 50) == 0.0


def test_a_summary_counts_what_was_done() -> None:
    outcomes = [outcome(0.1, 11, 0.02), outcome(0.3, 21, 0.01), Outcome(error="refused")]
    told = summary(outcomes, seconds=2.0, goals={"ttft": 200.0})
    assert (told["requests"], told["failed"], told["output_tokens"]) == (3, 1, 32)
    assert told["output_tokens_per_second"] == 16.0 and told["total_tokens_per_second"] == 26.0
    assert told["ttft_ms"]["mean"] == pytest.approx(200.0)
    assert told["tpot_ms"]["mean"] == pytest.approx(15.0)
    assert told["itl_ms"]["mean"] == pytest.approx(1e3 * (10 * 0.02 + 20 * 0.01) / 30)
    assert told["e2el_ms"]["p50"] == pytest.approx(400.0)
    assert told["goodput_requests_per_second"] == 0.5
    assert "time to first token" in render(told)


def test_a_drawing_is_well_formed(tmp_path: Path) -> None:
    draw([outcome(0.1, 11, 0.02), outcome(0.3, 21, 0.01)], tmp_path / "plot.svg")
    root = xml.parse(tmp_path / "plot.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 4
    draw([], tmp_path / "empty.svg")
