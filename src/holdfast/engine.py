"""The loop: plan a step, launch it, collect the step before."""

from __future__ import annotations

from pathlib import Path

import torch

from .cache import CacheManager
from .config import EngineConfig, Limits, resolve
from .cpu_isa import ensure_safe_bf16
from .executor.readback import InFlight
from .executor.runner import Runner
from .layers.batch import Build
from .models import registry
from .models.base import CausalLM, renamer
from .models.loader import load_weights
from .ops.backend import choose
from .plan import StepResult
from .request import Request
from .scheduler import Scheduler


class Engine:
    def __init__(self, runner: Runner, scheduler: Scheduler, *, overlap: bool) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self._overlap = overlap
        self._inflight: InFlight | None = None

    def submit(self, request: Request) -> None:
        """Raises Rejected if the request can never run."""
        self.scheduler.submit(request)

    def cancel(self, request_id: str) -> bool:
        """The request ends with what it has; its row, slot and pages come back with its last step."""
        return self.scheduler.cancel(request_id)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self) -> list[Request]:
        """One turn. Returns the requests that got tokens or ended, cancelled ones included."""
        plan = self.scheduler.plan()
        before, self._inflight = self._inflight, None if plan is None else self.runner.launch(plan)
        changed = self._collect(before)
        if not self._overlap:
            changed += self._collect(self._inflight)
            self._inflight = None
        return changed + self.scheduler.take_cancelled()

    def _collect(self, inflight: InFlight | None) -> list[Request]:
        if inflight is None:
            return []
        result: StepResult = inflight.result()
        return self.scheduler.collect(result)


def build_engine(directory: Path, config: EngineConfig) -> Engine:
    """A model directory, as the hub stores it, ready to serve."""
    model, limits = build_model(directory, config)
    runner = Runner(model, limits, torch.device(config.device))
    return Engine(runner, Scheduler(limits, CacheManager(limits)), overlap=config.overlap)


def build_model(directory: Path, config: EngineConfig) -> tuple[CausalLM, Limits]:
    values = registry.read_config(directory)
    architecture = registry.find(values)
    parsed = architecture.parse(values)
    limits = resolve(config, architecture.facts(parsed))
    if config.device == "cpu" and config.dtype == "bfloat16":
        ensure_safe_bf16()
    build = Build(
        ops=choose(config.backend, exact=config.exact),
        dtype=getattr(torch, config.dtype),
        state_dtype=getattr(torch, config.state_dtype),
        max_positions=limits.max_model_len + limits.max_window,
    )
    with torch.device("meta"):
        model = architecture.build(build, parsed)
    load_weights(model, directory, renamer(architecture.rules(parsed)), device=config.device)
    return model.to(config.device), limits
