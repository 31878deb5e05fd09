"""What the host needs for a step of a steady decode, part by part.

The engine and its loop are the real ones. Without a GPU only the device's work is left out: whatever was asked for,
every lane gets one token at once; with drafts (--drafts 3) three of four that are reached are accepted. With one
(--device cuda) a part's time is what its calls take the host, waiting included, and LFM2-1.2B runs at its real size.

    python benchmarks/host_step.py                      # 64 and 256 requests
    python benchmarks/host_step.py --profile --batches 256
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import holdfast.engine
from gpu.models import options
from gpu.shapes import MODELS
from holdfast import LLM, SamplingParams
from holdfast.answer import Answer
from holdfast.engine import Engine
from holdfast.executor import readback
from holdfast.executor.graphs import Graphs
from holdfast.executor.inputs import Inputs, Lanes, uniform_shapes
from holdfast.executor.runner import Ended, Runner
from holdfast.executor.sampler import Chosen
from holdfast.request import Request
from holdfast.scheduler import Scheduler
from holdfast.server.engine_process import EngineLoop
from holdfast.server.messages import Message, Stepped, frame
from holdfast.service import Service

SMALL: dict[str, Any] = {
    **MODELS["lfm2-1.2b"],
    "vocab_size": 256,
    "hidden_size": 32,
    "block_dim": 32,
    "block_ff_dim": 64,
    "conv_dim": 32,
    "conv_dim_out": 32,
    "num_attention_heads": 2,
    "num_heads": 2,
    "num_key_value_heads": 1,
}
"""No operation of it is done."""


class Sink:
    """A server that hears of every step."""

    def send(self, message: Message) -> None:
        frame(message)


PARTS: dict[str, tuple[type, str]] = {
    "plan": (Scheduler, "plan"),
    "inputs": (Inputs, "fill"),
    "tables": (Runner, "_apply"),
    "device": (Graphs, "run"),
    "fetch": (readback.Tray, "take"),
    "launch": (Runner, "launch"),
    "wait": (readback.Fetch, "wait"),
    "seconds": (readback.Laps, "lap"),
    "read back": (readback.InFlight, "result"),
    "collect": (Scheduler, "collect"),
    "engine": (Engine, "step"),
    "answers": (Service, "step"),
    "growth": (EngineLoop, "_step"),
    "send": (Sink, "send"),
}
WITHIN = {
    "launch": ("inputs", "tables", "device", "fetch"),
    "read back": ("wait", "seconds"),
    "engine": ("plan", "launch", "read back", "collect"),
}
"""Parts whose time holds that of others."""
DEVICE = ("device", "wait")


Clock = Callable[[], float]
Around = Callable[[], AbstractContextManager[Any]]


class Parts:
    """Seconds by part, over all steps while it is looked at."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.spent = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def timed(self) -> Iterator[None]:
        saved = {part: getattr(owner, name) for part, (owner, name) in PARTS.items()}
        for part, (owner, name) in PARTS.items():
            setattr(owner, name, self._timing(part, saved[part]))
        yield
        for part, (owner, name) in PARTS.items():
            setattr(owner, name, saved[part])

    def _timing(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        spent, clock = self.spent, self.clock

        def timed(*args: Any, **named: Any) -> Any:
            begun = clock()
            try:
                return work(*args, **named)
            finally:
                spent[part] += clock() - begun

        return timed

    def alone(self) -> dict[str, float]:
        """Each without those within it."""
        inner = {part: sum(self.spent[p] for p in WITHIN.get(part, ())) for part in PARTS}
        inner |= {whose: min(self.spent["engine"], self.spent[whose]) for whose in ("answers", "growth")}
        return {part: self.spent[part] - inner[part] for part in PARTS}


class NoDevice(Runner):
    """Every step is done at once: cursors move, and what is chosen is always the same."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        rows = len(self.tables.tokens)
        self._position = np.zeros(rows, dtype=np.int64)
        self._chance = np.random.default_rng(0)

    def _apply(self, plan: Any) -> None:
        super()._apply(plan)
        for start in plan.starts:
            self._position[start.row] = start.base

    def _pass(self, lanes: Lanes, absorbs: bool = True) -> Any:
        return SimpleNamespace(hidden=None, batch=None)

    def _draft(self, *_: Any) -> None:
        """None is looked at: it is only asked how many were accepted."""

    def _end(self, passed: Any, lanes: Lanes, *_: Any) -> Ended:  # type: ignore[override]
        rows, choices = lanes.rows.numpy(), lanes.choices
        drafts, lane = choices.drafts.drafts.numpy(), choices.drafts.lane.numpy()
        accepted = np.minimum(drafts, self._chance.geometric(0.25, len(drafts)) - 1)
        position = self._position[rows] + lanes.counts.numpy()
        position[lane] -= drafts - accepted
        self._position[rows] = position
        size, each = len(rows), len(drafts)
        chosen = slice(4 * size + 2 * each, 4 * size + 2 * each + len(choices.after))
        found = len(self.sanitizer.recorded.found) if self.sanitizer else 0
        report = np.zeros(chosen.stop + found, dtype=np.int64)
        report[:size], report[size : 2 * size] = position, position - position % self.state.grid
        report[4 * size : chosen.start] = np.concatenate((accepted, drafts))
        report[chosen] = 100
        told = torch.from_numpy(report)
        return Ended(Chosen(told[chosen], None, {}), told)


@contextmanager
def engine_without_device() -> Iterator[None]:
    """What an engine on a GPU would plan and launch, with nobody to do it."""
    saved = holdfast.engine.Runner

    def build(*args: Any, **named: Any) -> Runner:
        named["shapes"] = uniform_shapes(args[1], named["depths"])
        return NoDevice(*args, **named)

    holdfast.engine.Runner = build  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        holdfast.engine.Runner = saved  # type: ignore[misc]


@contextmanager
def serving(device: str, lanes: int, *, reuse: bool, sanitizer: str, drafts: int) -> Iterator[LLM]:
    config, others = (
        (MODELS["lfm2-1.2b"], {}) if device == "cuda" else (SMALL, {"device": "cpu", "dtype": "float32"})
    )
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config))
        asked = options(lanes, max_model_len=1024, enable_prefix_caching=reuse, sanitizer=sanitizer, **others)
        if drafts:
            asked["speculative_config"] = {"method": "ngram", "num_speculative_tokens": drafts}
        if device == "cuda":
            yield LLM(directory, **asked)
        else:
            asked |= {"eager": True, "num_pages": lanes * 70, "num_slots": 4 * lanes}
            with engine_without_device():
                yield LLM(directory, **asked)


def offline(llm: LLM, requests: list[Request]) -> Callable[[], object]:
    """A step of `LLM.generate`."""
    service = llm._service
    for request in requests:
        service.engine.submit(request)
        service._answers[request.id] = Answer(request, None)
    return lambda: [answer for answer in service.step() if answer.finished]


def served(llm: LLM, requests: list[Request]) -> Callable[[], object]:
    """A step of the server's engine process, which tells of all tokens."""
    wire = Sink()
    gc.freeze()
    loop = EngineLoop(llm._service.engine, wire)  # type: ignore[arg-type]
    for request in requests:
        loop._submit(request)
    return lambda: wire.send(Stepped(loop._step()))


def measure(llm: LLM, batch: int, asked: argparse.Namespace, around: Around = nullcontext) -> float:
    """Seconds of a step in which `batch` requests decode."""
    draws = torch.Generator().manual_seed(batch)
    params = SamplingParams(max_tokens=(1 + asked.drafts) * asked.steps + 64, ignore_eos=True)
    prompts = torch.randint(100, 256, (batch, 128), generator=draws).tolist()
    requests = [request for prompt in prompts for request in llm._service.intake.requests(prompt, params)]
    step = (served if asked.served else offline)(llm, requests)
    while not all(len(request.output) > 4 for request in requests):
        step()
    with around():
        begun = asked.clock()
        for _ in range(asked.steps):
            step()
        took = asked.clock() - begun
    for request in requests:
        llm._service.engine.cancel(request.id)
    llm._service.engine.settle()
    return took / asked.steps


def report(llm: LLM, batch: int, asked: argparse.Namespace) -> None:
    whole, by_part = [], []
    for _ in range(asked.reps):
        whole.append(1e6 * measure(llm, batch, asked))
        parts = Parts(asked.clock)
        measure(llm, batch, asked, parts.timed)
        by_part.append({part: 1e6 * spent / asked.steps for part, spent in parts.alone().items()})
    print(f"batch {batch}: {statistics.median(whole):.0f} us a step ({min(whole):.0f} to {max(whole):.0f})")
    for part in PARTS:
        took = statistics.median(found[part] for found in by_part)
        print(f"  {part:10} {took:8.1f}" + ("  (the device's)" if part in DEVICE else ""), flush=True)


def main() -> None:
    asks = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asks.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    asks.add_argument("--steps", type=int, default=300)
    asks.add_argument("--reps", type=int, default=3)
    asks.add_argument("--device", choices=("none", "cuda"), default="none")
    asks.add_argument("--reuse", action="store_true", help="with prefix caching")
    asks.add_argument("--drafts", type=int, default=0, help="of each request in every step")
    asks.add_argument("--sanitizer", choices=("off", "stamps"), default="off")
    asks.add_argument("--served", action="store_true", help="as in the server, which streams every token")
    asks.add_argument("--profile", action="store_true", help="functions instead of parts")
    asked = asks.parse_args()
    asked.steps = min(asked.steps, 768 // (1 + asked.drafts))  # no request may end
    asked.clock = time.perf_counter if asked.device == "cuda" else time.process_time
    torch.set_num_threads(1)
    how = {"reuse": asked.reuse, "sanitizer": asked.sanitizer, "drafts": asked.drafts}
    with serving(asked.device, max(asked.batches), **how) as llm:
        for batch in asked.batches:
            measure(llm, batch, asked)
            if asked.profile:
                profile = cProfile.Profile()
                measure(llm, batch, asked, lambda to=profile: to)  # type: ignore[misc]
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
            else:
                report(llm, batch, asked)


if __name__ == "__main__":
    main()
