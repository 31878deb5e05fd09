"""The loop: plan a step, launch it, think ahead while the device computes, collect the step before.

Of brief steps two more are in flight than the one that is collected, if nobody drafts, comes or is checked: then
nothing of the next plan depends on them but who has ended, and the device need not wait if the host takes longer for
once.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

import torch

from .blueprint import Blueprint
from .cache import CacheManager
from .config import EngineConfig, Limits
from .executor.inputs import uniform_shapes
from .executor.readback import InFlight
from .executor.runner import Runner
from .grammar import GrammarError, Grammars
from .memory.capacity import CapacityPlan
from .models.base import CausalLM
from .plan import StepResult
from .request import ConstraintStats, FinishReason, Rejected, Request
from .scheduler import Scheduler
from .scheduler.depth import make_depth
from .spec.ensemble import Ensemble
from .start import prepare

logger = logging.getLogger("holdfast")


class EngineFailed(RuntimeError):
    """A step broke off, so nobody knows what rows, slots and pages hold. Only a new engine helps."""


class Engine:
    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        overlap: bool,
        capacity: CapacityPlan,
        grammars: Grammars,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.capacity = capacity
        self._overlap = overlap
        self._grammars = grammars
        self._inflight: deque[InFlight] = deque()
        self._failure: BaseException | None = None
        self.findings = 0
        """Of the sanitizer, since the start."""

    @property
    def constraint_stats(self) -> ConstraintStats:
        """What masks took, of answers that must have a form."""
        return self.runner.constraints.stats

    def submit(self, request: Request) -> None:
        """Raises Rejected if the request can never run."""
        self._check_alive()
        if (structured := request.params.structured) is not None:
            try:
                self._grammars.check(structured)
            except GrammarError as error:
                raise Rejected(request.id, str(error)) from error
        self.scheduler.submit(request)

    def cancel(self, request_id: str) -> bool:
        """The request ends with what it has; its row, slot and pages come back with its last step."""
        return self.scheduler.cancel(request_id)

    def finish(self, request_id: str, reason: FinishReason, *, kept: int) -> bool:
        """As `cancel`, for a reason that only the caller can see, after so many tokens of the answer. The request is
        not reported again."""
        return self.scheduler.finish(request_id, reason, kept=kept)

    def settle(self) -> None:
        """If nobody runs or waits, collect what is in flight: what ended rows held is given back now."""
        while self.has_work and self._failure is None and not self._anybody:
            self.step()

    @property
    def _anybody(self) -> int:
        return self.scheduler.num_running + self.scheduler.num_waiting

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def step(self) -> list[Request]:
        """One turn. Returns the requests that got tokens or ended, cancelled ones included."""
        self._check_alive()
        try:
            return self._turn()
        except BaseException as error:
            self._failure = error
            raise

    def _turn(self) -> list[Request]:
        plan = self.scheduler.plan()
        if plan is not None:
            self._inflight.append(self.runner.launch(plan))
        self.scheduler.think()
        left = 0 if plan is None else self._left
        changed = self._collect(self._inflight.popleft()) if len(self._inflight) > left else []
        while len(self._inflight) > left:
            again = {request.id: request for request in self._collect(self._inflight.popleft())}
            changed = [request for request in changed if request.id not in again] + [*again.values()]
        return changed + self.scheduler.take_cancelled()

    @property
    def _left(self) -> int:
        """Steps that stay in flight."""
        if not self._overlap:
            return 0
        last = self._inflight[-1]
        return 2 if last.plain and self._inflight[0].plain and last.laps.brief else 1

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineFailed(f"an earlier step broke off ({self._failure!r}); load the model anew")

    def _collect(self, inflight: InFlight) -> list[Request]:
        result: StepResult = inflight.result()
        self.findings += len(result.findings)
        for finding in result.findings:
            logger.error("%s", finding)
        return self.scheduler.collect(result)


def build_engine(directory: Path, config: EngineConfig, *, weights_of: CausalLM | None = None) -> Engine:
    """A model directory, as the hub stores it, ready to serve. `weights_of` spares loading it again."""
    blueprint = Blueprint(directory, config)
    grammars = Grammars(directory, blueprint.facts.vocab_size)

    def make_runner(ensemble: Ensemble, limits: Limits) -> Runner:
        return Runner(
            ensemble,
            limits,
            torch.device(config.device),
            sanitizer=config.sanitizer,
            # also where nothing is recorded: the same bits
            shapes=uniform_shapes(limits, config.depths) if blueprint.uniform else (),
            depths=config.depths,
            grammars=grammars,
        )

    capacity, runner = prepare(blueprint, weights_of, make_runner)
    cache = CacheManager(capacity.limits, prefix_reuse=config.enable_prefix_caching)
    depth = make_depth(config.speculative_config, ragged=not runner.shapes)
    scheduler = Scheduler(capacity.limits, cache, depth=depth)
    return Engine(runner, scheduler, overlap=config.overlap, capacity=capacity, grammars=grammars)
