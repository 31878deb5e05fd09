"""Adaptive depth on a simulated clock, over acceptance rates and batch sizes, and once on the CPU for real.

The clock is a model, made of step times that were measured on an H200 (`MEASURED`): the weights' part of a step is
flat up to 64 tokens and rises by a tile of 64 from there, a row adds its own part, a token of context its KV at the
measured bandwidth, and each pass of a drafting head a twentieth of a decode step. The policy sees nothing of it but
what a StepResult says: accepted drafts, and seconds with noise on them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.adaptive import AdaptiveConfig
from holdfast.ids import Row
from holdfast.plan import RowWork, StepPlan, StepResult, Window
from holdfast.scheduler.cost_depth import CostDepth
from holdfast.scheduler.depth import Depth
from holdfast.scheduler.ema_depth import EmaDepth

HELDOUT = Path(__file__).parent / "data" / "small_talk_heldout.jsonl"
DEPTHS = (0, 1, 3, 7)
TILE = 64
HEAD = 1 / 20
"""Of a decode step: what one pass of an MTP head takes."""
BANDWIDTH = 4.26e12
MEASURED = {
    "Qwen3.5-4B": ({1: 3.2, 16: 3.7, 64: 4.9, 256: 13.0}, 32 * 1024),
    "LFM2-1.2B": ({1: 0.93, 16: 1.07, 64: 1.18, 256: 4.2}, 12 * 1024),
}
"""Milliseconds of a decode step by batch, on an H200; bytes of KV for each token of context."""


@dataclass(frozen=True)
class Machine:
    flat: float
    row: float
    tile: float
    context: float

    @staticmethod
    def of(name: str) -> Machine:
        measured, kv_bytes = MEASURED[name]
        row = (measured[64] - measured[1]) / 63
        flat = measured[1] - row
        tile = (measured[256] - flat - 256 * row) / (256 / TILE - 1)
        return Machine(flat * 1e-3, row * 1e-3, tile * 1e-3, kv_bytes / BANDWIDTH)

    def seconds(self, rows: int, tokens: int, propose: int, context: int) -> float:
        return self._pass(rows, tokens) + propose * HEAD * self._pass(rows, rows) + self.context * context

    def _pass(self, rows: int, tokens: int) -> float:
        return self.flat + self.tile * max(0, math.ceil(tokens / TILE) - 1) + self.row * rows


Rates = Callable[[int, int], float]
"""Of a step and a row: the chance that a draft is accepted, if those before it are."""


@dataclass(frozen=True)
class Traffic:
    rows: int
    rate: Rates
    context: Callable[[int], int] = lambda step: 1000
    """Tokens that each row knows."""


@dataclass(frozen=True)
class Ran:
    """Of each step: tokens that it brought, on average over the chance, its seconds, and the drafts it made."""

    tokens: list[float]
    seconds: list[float]
    depths: list[int]

    def speed(self, first: int = 0, last: int | None = None) -> float:
        return sum(self.tokens[first:last]) / sum(self.seconds[first:last])


@functools.cache
def expected(rate: float, drafts: int) -> float:
    return 1 + sum(rate**place for place in range(1, drafts + 1))


def run(
    depth: Depth, machine: Machine, traffic: Traffic, steps: int, *, ragged: bool = False, seed: int = 0
) -> Ran:
    """Overlapped, as the engine is: a step is planned before the one before it is known."""
    chance, ran, rows = random.Random(seed), Ran([], [], []), traffic.rows
    windows = {Row(row): Window() for row in range(1, rows + 1)}
    inflight: StepResult | None = None
    for step in range(1, steps + 1):
        propose, context = depth.decide(), traffic.context(step)
        work = tuple(RowWork(row, 1, 1 + w.drafts, w) for row, w in windows.items())
        depth.planned(StepPlan(step, work=work, positions=(context,) * rows, propose=propose))
        chosen, windows = [], {row: Window(min(propose, depth.share(row))) for row in windows}
        tokens, longest = 0.0, 0
        for w in work:
            rate, drafts, accepted = traffic.rate(step, w.row), w.window.drafts, 0
            while accepted < drafts and chance.random() < rate:
                accepted += 1
            tokens += expected(rate, drafts)
            longest = max(longest, drafts)
            chosen.append((0,) * (accepted + 1))
        total = sum(w.tokens for w in work) if ragged else rows * (1 + longest)
        seconds = machine.seconds(rows, total, propose, rows * context)
        ran.tokens.append(tokens)
        ran.seconds.append(seconds)
        ran.depths.append(propose)
        depth.think()
        if inflight:
            depth.collected(inflight)
        seen = seconds * chance.lognormvariate(0, 0.03) * (3 if chance.random() < 0.005 else 1)
        inflight = StepResult(step, work, tokens=chosen, seconds=seen)
    return ran


def cost(*, initial: int = 3, ragged: bool = False) -> CostDepth:
    return CostDepth(AdaptiveConfig(), initial, ragged=ragged)


def fixed_speed(
    machine: Machine, rows: int, rates: Sequence[float], drafts: int, context: int = 1000
) -> float:
    """Tokens a second if every step has so many drafts for rows with these rates, in equal parts."""
    tokens = rows * sum(expected(rate, drafts) for rate in rates) / len(rates)
    return tokens / machine.seconds(rows, rows * (1 + drafts), drafts, rows * context)


def best_fixed(machine: Machine, rows: int, rates: Sequence[float], context: int = 1000) -> tuple[int, float]:
    speeds = {drafts: fixed_speed(machine, rows, rates, drafts, context) for drafts in DEPTHS}
    best = max(speeds, key=lambda drafts: speeds[drafts])
    return best, speeds[best]


@dataclass(frozen=True)
class Point:
    model: str
    rows: int
    rate: float
    best: int
    of_best: float
    """The policy's speed, as a part of the best fixed depth's."""
    of_none: float
    ema_of_best: float


def point(model: str, rows: int, rate: float, steps: int = 1000) -> Point:
    machine, traffic = Machine.of(model), Traffic(rows, lambda step, row: rate)
    best, speed = best_fixed(machine, rows, [rate])
    none = fixed_speed(machine, rows, [rate], 0)
    adaptive = run(cost(), machine, traffic, steps).speed()
    ema = run(EmaDepth(AdaptiveConfig(policy="ema"), 3), machine, traffic, steps).speed()
    return Point(model, rows, rate, best, adaptive / speed, adaptive / none, ema / speed)


RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROWS = (1, 4, 16, 64, 128, 256)


# --- the drawing ---

SHADES = ("#d94801", "#f7b26a", "#d5e8d4", "#74b77a", "#2f7d4f")


def draw(points: Sequence[Point], drift: Ran, change: int, path: Path) -> None:
    """For each model a field of rates and batches, with the best fixed depth and the policy's part of its speed;
    below, the depth over time when the rate changes."""
    parts = []
    for place, model in enumerate(MEASURED):
        left, top, width, height = 70 + 470 * place, 50, 34, 26
        parts.append(
            f'<text x="{left}" y="{top - 26}" font-weight="bold">{model}: speed of cost, % of the best</text>'
        )
        parts.append(
            f'<text x="{left}" y="{top - 10}">columns: acceptance rate; rows: batch; in brackets: best depth</text>'
        )
        for p in (p for p in points if p.model == model):
            x, y = left + width * RATES.index(p.rate), top + 14 + height * ROWS.index(p.rows)
            shade = SHADES[min(4, max(0, int(100 * p.of_best - 95)))]
            parts.append(f'<rect x="{x}" y="{y}" width="{width - 1}" height="{height - 1}" fill="{shade}"/>')
            parts.append(
                f'<text x="{x + width / 2 - 0.5}" y="{y + 16}" text-anchor="middle" font-size="10">'
                f"{100 * p.of_best:.0f} ({p.best})</text>"
            )
        for rate in RATES:
            x = left + width * (RATES.index(rate) + 0.5)
            parts.append(f'<text x="{x}" y="{top + 9}" text-anchor="middle">{rate:g}</text>')
        for rows in ROWS:
            y = top + 30 + height * ROWS.index(rows)
            parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{rows}</text>')
    left, top, width, height, steps = 70, 290, 844, 110, len(drift.depths)
    scale = width / steps
    line = " ".join(
        f"{left + scale * i:.1f},{top + height * (1 - d / 7):.1f}" for i, d in enumerate(drift.depths)
    )
    parts.append(
        f'<text x="{left}" y="{top - 14}" font-weight="bold">drafts made, Qwen3.5-4B, 16 rows; the acceptance rate '
        f"goes from 0.9 to 0 and back every {change} steps</text>"
    )
    for start in range(0, steps, change):
        shade = "#eef5ee" if start // change % 2 == 0 else "#fdf0e6"
        parts.append(
            f'<rect x="{left + scale * start:.1f}" y="{top}" width="{scale * min(change, steps - start):.1f}" '
            f'height="{height}" fill="{shade}"/>'
        )
        parts.append(f'<text x="{left + scale * start:.1f}" y="{top + height + 16}">{start}</text>')
    parts += [
        f'<text x="{left - 8}" y="{top + height * (1 - d / 7) + 4:.0f}" text-anchor="end">{d}</text>'
        for d in DEPTHS
    ]
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1b6ca8" stroke-width="1.5"/>')
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="960" height="440" font-family="sans-serif" font-size="12">'
        f'<rect width="960" height="440" fill="white"/>{"".join(parts)}</svg>\n',
        encoding="utf-8",
    )


def drifting(change: int, steps: int) -> Ran:
    machine = Machine.of("Qwen3.5-4B")
    traffic = Traffic(16, lambda step, row: 0.0 if (step - 1) // change % 2 else 0.9)
    return run(cost(), machine, traffic, steps)


# --- the CPU, for real ---


def on_the_cpu(method: str, rows: int, rounds: int, answer: int, until: float) -> dict[str, float]:
    """Tokens a second of the built-in model, each depth fixed and adaptive, as they take turns; another begins
    in each round: medians. One engine has all depths, so that nothing else differs (two that are alike differ by a
    quarter, by where their memory lies); 0 is one without a drafter. What `cost` has to find out it finds out in the
    first rounds. No round begins after `until`, but the first."""
    from holdfast import LLM, SamplingParams

    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    told = [json.loads(line)["prompt"] for line in HELDOUT.read_text(encoding="utf-8").splitlines()]
    asked = [[{"role": "user", "content": text}] for text in told[: max(2, rows)]]
    adaptive = {"method": method, "num_speculative_tokens": 3, "adaptive": True}
    plain, drafting = (
        LLM(None, speculative_config=config, max_num_seqs=rows, enable_prefix_caching=False)
        for config in (None, adaptive)
    )
    policy = drafting._engine.scheduler._depth
    ways = {str(d): (drafting if d else plain, Depth(d)) for d in DEPTHS} | {"cost": (drafting, policy)}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        if number and time.perf_counter() > until:
            print(f"{number} of {rounds} rounds: no time left")
            break
        turns = list(ways)
        for name in turns[number % len(turns) :] + turns[: number % len(turns)]:
            llm, depth = ways[name]
            llm._engine.scheduler._depth = depth
            begun = time.perf_counter()
            outputs = llm.chat(asked, params)
            tokens = sum(len(output.token_ids) for output in outputs)
            speeds[name].append(tokens / (time.perf_counter() - begun))
    print(policy.why())
    return {name: statistics.median(each) for name, each in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the points here as well")
    parser.add_argument("--svg", type=Path, help="draw them")
    parser.add_argument("--steps", type=int, default=1000, help="of each point; 0: only on the CPU")
    parser.add_argument("--rounds", type=int, default=5, help="on the CPU; 0: only simulated")
    parser.add_argument("--answer", type=int, default=96, help="tokens of each answer there")
    parser.add_argument("--seconds", type=float, default=180.0, help="that the rounds there may take, about")
    args = parser.parse_args()
    found: dict[str, object] = {}
    if args.steps:
        found["points"] = [vars(p) for p in simulated(args.steps, args.svg)]
    if args.rounds:
        begun, cpu = time.perf_counter(), dict[str, dict[str, float]]()
        found["cpu_tokens_per_second"] = cpu
        cases = list(itertools.product(("mtp", "ngram"), (1, 8)))
        for number, (method, rows) in enumerate(cases, 1):
            until = begun + args.seconds * number / len(cases)
            speeds = on_the_cpu(method, rows, args.rounds, args.answer, until)
            cpu[f"{method}, {rows} rows"] = speeds
            told = ", ".join(f"{depth}: {speed:.0f}" for depth, speed in speeds.items())
            seconds = time.perf_counter() - begun
            print(
                f"[{seconds:5.1f} s] CPU, built-in model, {method}, {rows} rows, tokens/s: {told}", flush=True
            )
            _write(args.json, found)
    _write(args.json, found)


def _write(path: Path | None, found: dict[str, object]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def simulated(steps: int, svg: Path | None) -> list[Point]:
    points = [point(model, rows, rate, steps) for model in MEASURED for rows in ROWS for rate in RATES]
    print(f"{'model':<12} {'rows':>5} {'rate':>5} {'best':>5} {'of best':>8} {'of none':>8} {'ema':>8}")
    for p in points:
        print(
            f"{p.model:<12} {p.rows:>5} {p.rate:>5} {p.best:>5} {p.of_best:>8.3f} {p.of_none:>8.3f} "
            f"{p.ema_of_best:>8.3f}"
        )
    print(f"worst of best {min(p.of_best for p in points):.3f}, of none {min(p.of_none for p in points):.3f}")
    if svg:
        draw(points, drifting(300, 1500), 300, svg)
    return points


if __name__ == "__main__":
    main()
