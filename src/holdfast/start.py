"""From a blueprint to a runner that is ready for steps: weights, the plan, and all that is compiled and recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .blueprint import Blueprint
from .config import ConfigError, Limits
from .executor.profile import profile, smallest_pools
from .executor.runner import Runner
from .memory.capacity import CapacityPlan
from .memory.gpu import GpuMemory
from .memory.sizing import UNMEASURED
from .models.base import CausalLM
from .spec.ensemble import Ensemble
from .units import format_bytes

logger = logging.getLogger("holdfast")

MakeRunner = Callable[[Ensemble, Limits], Runner]

SHORTAGES = ("out of memory", "ALLOC_FAILED", "can't allocate memory")
"""What torch, the driver and libraries say when there is none left."""


@contextmanager
def _shortage_explained(capacity: CapacityPlan) -> Iterator[None]:
    """The plan went by what was free when it was made."""
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error) for words in SHORTAGES):
            raise
        device, total = capacity.config.device, format_bytes(capacity.parts.total)
        told = (
            f"{device} has run out of memory, though {total} were planned to fit: somebody else may have taken what "
            f"was free, or what steps take ({capacity.steps}) is more. Ask for less than memory='{total}', or lower "
            "max_num_batched_tokens or max_num_seqs."
        )
        if capacity.steps == UNMEASURED.known:
            told = (
                f"{device} has run out of memory while it was measured what steps take beside the weights. Lower "
                "max_num_batched_tokens, max_num_seqs or max_model_len."
            )
        raise ConfigError(f"{told}\n{capacity.render()}\n{error}") from error


def prepare(
    blueprint: Blueprint, weights_of: CausalLM | None, make_runner: MakeRunner
) -> tuple[CapacityPlan, Runner]:
    """A plan, and a runner that follows it and has done at start whatever can be done then."""
    by = _measured if blueprint.measures else _estimated
    return by(blueprint, weights_of, make_runner)


def _estimated(
    blueprint: Blueprint, weights_of: CausalLM | None, make_runner: MakeRunner
) -> tuple[CapacityPlan, Runner]:
    capacity = blueprint.capacity
    _tell(capacity)
    with _shortage_explained(capacity):
        runner = make_runner(blueprint.build(weights_of), capacity.limits)
        if not capacity.config.eager:
            runner.compile_ahead()
            runner.record()
    return capacity, runner


def _measured(
    blueprint: Blueprint, weights_of: CausalLM | None, make_runner: MakeRunner
) -> tuple[CapacityPlan, Runner]:
    """On a device where steps are tried before its memory is divided."""
    at_most = blueprint.at_most
    blueprint.check_device()
    memory = GpuMemory(torch.device(at_most.config.device))
    with _shortage_explained(at_most):
        ensemble = blueprint.build(weights_of)
        smallest = make_runner(ensemble, smallest_pools(at_most.limits))
        steps = profile(smallest, memory, records=blueprint.records)
        del smallest  # its pools make room for the real ones
        memory.settle()
    capacity = blueprint.measured(steps, memory.available)
    _tell(capacity)
    with _shortage_explained(capacity):
        runner = make_runner(ensemble, capacity.limits)
        if blueprint.records:
            before = memory.settle()
            runner.record()
            _tell_recorded(memory.settle() - before, steps.graphs, memory.free)
        runner.exert()
    return capacity, runner


def _tell(capacity: CapacityPlan) -> None:
    logger.info("%s", capacity.render())
    for note in capacity.notes:
        logger.warning("%s", note)


def _tell_recorded(taken: int, planned: int, left: int) -> None:
    sizes = [format_bytes(size) for size in (taken, planned, left)]
    if taken > planned:
        logger.warning("recorded steps took %s, though %s were planned; %s are left", *sizes)
    else:
        logger.info("recorded steps took %s of the %s planned; %s are left", *sizes)
