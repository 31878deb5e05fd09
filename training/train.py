"""Trains a model for so many minutes of one longer run, and leaves what the next command continues from.

DIR/config.json, model.safetensors   the model so far, as the hub has it
DIR/log.jsonl                        options, then losses as they were
DIR/progress.json, low.safetensors, momentum.safetensors, second.safetensors
                                     while the run is unfinished: what bfloat16 rounded away, the optimizer's memory
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from . import hub
from .models import Model, Qwen35, build
from .muon import Optimizer, Rates
from .rows import Batch, Rows, batch, heldout, heldout_tasks, loader
from .tasks import RECALL

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WARM_UP, DECAY = 0.02, 0.45
"""Shares of the run: the rate rises, and it falls to nothing at the end."""
UNFINISHED = ("progress.json", "low.safetensors", "momentum.safetensors", "second.safetensors")
TASK_LENGTHS = (256, 1024)


@dataclass
class Progress:
    """What a run has behind it."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    commands: int = 0
    rates: Rates = field(default_factory=Rates)


def main(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    train(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training train", description=__doc__.split("\n")[0])
    parser.add_argument("--what", choices=list(hub.CONFIGS), default="small")
    parser.add_argument("--data", type=Path, required=True, help="what `prepare` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="the --out of the command before")
    parser.add_argument("--minutes", type=float, required=True, help="of this command")
    parser.add_argument("--total-minutes", type=float, help="of the whole run; default: this command is all")
    parser.add_argument("--batch", type=int, default=32, help="rows in a step")
    parser.add_argument("--length", type=int, default=2048, help="tokens in a row")
    parser.add_argument("--tasks", type=float, default=0.3, help="share of rows that are made-up tasks")
    parser.add_argument("--mtp-weight", type=float, default=0.3)
    parser.add_argument("--dropout", type=float, default=0.05, help="texts are read many times over")
    parser.add_argument("--muon-rate", type=float, default=Rates.muon)
    parser.add_argument("--adam-rate", type=float, default=Rates.adam)
    parser.add_argument("--workers", type=int, default=8, help="processes that make rows")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--report-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def train(options: argparse.Namespace) -> None:
    progress = Progress(rates=Rates(options.muon_rate, options.adam_rate))
    model = build(hub.CONFIGS[options.what]).to(DEVICE)
    optimizer = Optimizer(model.named_parameters(), progress.rates)
    if options.resume:
        progress = resume(options.resume, model, optimizer)
    for layer in model.model.layers:
        layer.dropout = options.dropout
        if options.compile:
            layer.compile()
    total = 60 * (options.total_minutes or options.minutes)
    deadline = min(total, progress.seconds + 60 * options.minutes)
    rows = Rows(
        options.data,
        batch=options.batch,
        length=options.length,
        tasks=options.tasks,
        seed=options.seed + 1000 * progress.commands,  # later commands see other tasks, in another order
    )
    log = Log(options, progress, model)
    evaluation = Evaluation(options.data, options.length)
    clock = Clock(progress.seconds)
    for found in loader(rows, options.workers):
        report = training_step(model, found, options.mtp_weight)
        optimizer.step(rate_at(clock.seconds / total))
        progress.step, progress.tokens = progress.step + 1, progress.tokens + found.tokens.numel()
        if clock.fresh:  # the first step compiles and warms up
            clock.restart(report)
        if clock.due("report", options.report_every) or clock.seconds >= deadline:
            log.write(progress, clock, {name: float(it) for name, it in report.items()}, total)
            if not torch.isfinite(report["loss"]):
                raise SystemExit(
                    "the loss is no number any more: the last weights that were saved are still good"
                )
        if clock.due("evaluation", 45):
            log.write(progress, clock, evaluation(model), total)
            save(options.out, model, optimizer, replace(progress, seconds=clock.seconds), finished=False)
            log.copy_to(options.out)
        if clock.seconds >= deadline:
            break
    progress.seconds, progress.commands = clock.seconds, progress.commands + 1
    save(options.out, model, optimizer, progress, finished=clock.seconds >= total)
    hub.load(model, options.out)  # what was saved is what counts
    log.write(progress, clock, {"final": clock.seconds >= total, **evaluation(model)}, total)
    log.copy_to(options.out)


def rate_at(done: float) -> float:
    return max(0.0, min(1.0, (done + 1e-3) / WARM_UP, (1 - done) / DECAY))


def training_step(model: Model, found: Batch, mtp_weight: float) -> dict[str, Tensor]:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        losses = compute_losses(model, found)
    (losses["loss"] + mtp_weight * losses.get("mtp", 0.0)).backward()
    return {name: loss.detach() for name, loss in losses.items()}


def compute_losses(model: Model, found: Batch) -> dict[str, Tensor]:
    hidden, _ = model(found.tokens)
    losses = {"loss": cross_entropy(model.logits(hidden), found.targets)}
    if isinstance(model, Qwen35):
        said = model.mtp(model.embed(found.tokens), one_later(hidden))
        losses["mtp"] = cross_entropy(model.logits(said), found.targets)
    return losses


def one_later(hidden: Tensor) -> Tensor:
    """[B, T, hidden] beside each token that of the token before it; zeros before the first."""
    return F.pad(hidden[:, :-1], (0, 0, 1, 0))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100)


class Evaluation:
    """Held-out loss, and the share of answers to held-out tasks of which every token is the likeliest one."""

    def __init__(self, data: Path, length: int) -> None:
        self.texts = heldout(data, length, most=32 if DEVICE == "cuda" else 2)
        self.tasks = {
            f"{name}@{tokens}": heldout_tasks(data, name, tokens, length, 32 if DEVICE == "cuda" else 2)
            for name in RECALL
            for tokens in TASK_LENGTHS
            if tokens < length
        }

    @torch.no_grad()
    @torch.compiler.set_stance("force_eager")  # compiling for it would cost more than it
    def __call__(self, model: Model) -> dict[str, float]:
        model.eval()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            found = batch(self.texts.to(DEVICE))
            losses = compute_losses(model, found)
            report = {f"heldout_{name}": float(loss) for name, loss in losses.items()}
            for name, rows in self.tasks.items():
                report[name] = self._right(model, batch(rows.to(DEVICE)))
        model.train()
        return report

    @staticmethod
    def _right(model: Model, found: Batch) -> float:
        hidden, _ = model(found.tokens)
        asked = found.targets >= 0
        wrong = asked & (model.logits(hidden).argmax(-1) != found.targets)
        answer = (asked & ~F.pad(asked[:, :-1], (1, 0))).cumsum(
            -1
        )  # which answer of the row each token is in
        count = int(answer[:, -1].sum())
        failed = torch.zeros(answer.shape[0], int(answer.max()) + 1, device=answer.device)
        failed.scatter_reduce_(1, answer, wrong.float(), "amax")
        return 1 - float(failed[:, 1:].sum()) / count


class Clock:
    """The run's seconds. The device is waited for only where a loss is read."""

    def __init__(self, before: float) -> None:
        self.before, self.start, self.fresh = before, time.perf_counter(), True
        self.last = dict[str, float]()

    def restart(self, report: dict[str, Tensor]) -> None:
        float(next(iter(report.values())))  # waits for the device
        self.fresh = False
        self.start = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.start

    def due(self, what: str, every: float) -> bool:
        due = self.seconds - self.last.setdefault(what, self.before) >= every
        if due:
            self.last[what] = self.seconds
        return due


class Log:
    def __init__(self, options: argparse.Namespace, progress: Progress, model: Model) -> None:
        self.lines = []
        if options.resume and (before := options.resume / "log.jsonl").is_file():
            self.lines = before.read_text().splitlines()
        given = {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()
        }
        size = sum(it.numel() for it in model.parameters())
        self._add({"options": given, "parameters": size, "torch": torch.__version__, "device": DEVICE})
        self.before = (progress.tokens, progress.seconds)

    def write(self, progress: Progress, clock: Clock, values: dict[str, float], total: float) -> None:
        seconds = clock.seconds
        tokens, since = self.before
        speed = (progress.tokens - tokens) / max(seconds - since, 1e-9)
        self._add(
            {
                "step": progress.step,
                "tokens": progress.tokens,
                "seconds": round(seconds, 1),
                "tokens_per_second": round(speed),
                "seconds_left": round(total - seconds),
                **{name: round(value, 4) for name, value in values.items()},
            }
        )

    def _add(self, values: dict[str, Any]) -> None:
        self.lines.append(json.dumps(values))
        print(self.lines[-1], flush=True)

    def copy_to(self, directory: Path) -> None:
        (directory / "log.jsonl").write_text("\n".join(self.lines) + "\n")


def save(directory: Path, model: Model, optimizer: Optimizer, progress: Progress, *, finished: bool) -> None:
    weights = dict(model.state_dict())
    hub.save(directory, model.config, weights)
    if finished:
        for name in UNFINISHED:
            (directory / name).unlink(missing_ok=True)
        return
    low = {name: it.float() - it.bfloat16().float() for name, it in weights.items()}
    hub.write_tensors(directory / "low.safetensors", low)
    hub.write_tensors(directory / "momentum.safetensors", optimizer.first)
    hub.write_tensors(directory / "second.safetensors", optimizer.second)
    hub.write_json(directory / "progress.json", asdict(progress))


def resume(directory: Path, model: Model, optimizer: Optimizer) -> Progress:
    """Files of the optimizer that were not brought along start from nothing, which costs a few steps."""
    values = json.loads((directory / "progress.json").read_text())
    progress = Progress(**{**values, "rates": Rates(**values["rates"])})
    hub.load(model, directory)
    optimizer.rates = progress.rates
    if (directory / "second.safetensors").is_file():
        optimizer.steps = progress.step
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, it in _tensors(directory / "low.safetensors"):
            named[name] += it.to(DEVICE, torch.float32)
        for held, file in ((optimizer.first, "momentum"), (optimizer.second, "second")):
            for name, it in _tensors(directory / f"{file}.safetensors"):
                held[name].copy_(it)
    return progress


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    if path.is_file():
        yield from load_file(path).items()
    else:
        print(f"{path} is not there: going on without it", flush=True)
