"""What a run measured: percentiles, a table, JSON, and a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PERCENTILES = (50, 90, 95, 99)


@dataclass
class Outcome:
    """One request. Seconds since it was sent."""

    error: str | None = None
    ttft: float = 0.0
    end: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between the chunks that had text."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    @property
    def tpot(self) -> float:
        """Time per output token after the first."""
        return (self.end - self.ttft) / max(1, self.output_tokens - 1)


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two nearest, in proportion."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(outcomes: Sequence[Outcome], seconds: float, goals: Mapping[str, float]) -> dict[str, Any]:
    """`goals` are milliseconds for ttft, tpot and e2el that a request must keep to, to count as good."""
    done = [outcome for outcome in outcomes if outcome.error is None]
    told: dict[str, Any] = {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(done),
        "seconds": seconds,
        "requests_per_second": len(done) / seconds,
        "output_tokens_per_second": sum(o.output_tokens for o in done) / seconds,
        "total_tokens_per_second": sum(o.output_tokens + o.prompt_tokens for o in done) / seconds,
        "prompt_tokens": sum(o.prompt_tokens for o in done),
        "cached_tokens": sum(o.cached_tokens for o in done),
        "output_tokens": sum(o.output_tokens for o in done),
    }
    for name, values in samples(done).items():
        told[f"{name}_ms"] = {"mean": sum(values) / max(1, len(values))}
        told[f"{name}_ms"] |= {f"p{share}": percentile(values, share) for share in PERCENTILES}
    if goals:
        good = sum(all(times(o)[name] <= limit for name, limit in goals.items()) for o in done)
        told["goodput_requests_per_second"] = good / seconds
    return told


def times(outcome: Outcome) -> dict[str, float]:
    """Milliseconds."""
    return {"ttft": 1e3 * outcome.ttft, "tpot": 1e3 * outcome.tpot, "e2el": 1e3 * outcome.end}


def samples(done: Sequence[Outcome]) -> dict[str, list[float]]:
    found = {name: [times(outcome)[name] for outcome in done] for name in ("ttft", "tpot", "e2el")}
    return found | {"itl": [1e3 * gap for outcome in done for gap in outcome.gaps]}


def render(told: Mapping[str, Any]) -> str:
    lines = []
    for name, value in told.items():
        if not isinstance(value, dict):
            lines.append(f"{name.replace('_', ' '):<28} {value:>12,.2f}".replace(".00", "   "))
    lines.append(
        f"\n{'milliseconds':<28} {'mean':>9}" + "".join(f" {f'p{share}':>9}" for share in PERCENTILES)
    )
    for name, label in LABELS.items():
        if values := told.get(f"{name}_ms"):
            lines.append(f"{label:<28}" + "".join(f" {value:>9.2f}" for value in values.values()))
    return "\n".join(lines)


LABELS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "whole request",
}
COLOURS = {"ttft": "#1b6ca8", "tpot": "#c8553d", "itl": "#588157", "e2el": "#6d597a"}


def draw(done: Sequence[Outcome], path: Path) -> None:
    """An SVG: for each time, which part of the requests was at least so fast."""
    panels = [_panel(name, values, place) for place, (name, values) in enumerate(samples(done).items())]
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="840" height="520" font-family="sans-serif" '
        f'font-size="12"><rect width="840" height="520" fill="white"/>{"".join(panels)}</svg>\n',
        encoding="utf-8",
    )


def _panel(name: str, values: list[float], place: int) -> str:
    width, height, left, top = 340, 190, 50 + 410 * (place % 2), 40 + 250 * (place // 2)
    most = percentile(values, 100) or 1.0
    shares = [share for share in range(0, 101)]
    points = " ".join(
        f"{left + width * percentile(values, share) / most:.1f},{top + height * (1 - share / 100):.1f}"
        for share in shares
    )
    ticks = "".join(
        f'<text x="{left + width * part / 4:.0f}" y="{top + height + 16}" text-anchor="middle">'
        f"{most * part / 4:.3g}</text>"
        for part in range(5)
    )
    parts = "".join(
        f'<text x="{left - 6}" y="{top + height * (1 - share / 100) + 4:.0f}" text-anchor="end">{share}%</text>'
        for share in (0, 50, 100)
    )
    return (
        f'<text x="{left}" y="{top - 12}" font-weight="bold">{LABELS[name]}, ms</text>'
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>'
        f'{ticks}{parts}<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
    )
