"""From a model's directory and the user's options to a model and its limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from .config import ConfigError, EngineConfig, ModelFacts
from .cpu_isa import ensure_safe_bf16
from .executor.footprint import table_bytes
from .layers.batch import Build
from .memory.available import available_bytes
from .memory.capacity import CapacityPlan, make_plan
from .memory.sizing import UNMEASURED, Footprint, StepBytes, max_positions, measure
from .models.base import CausalLM, Rename, pack
from .models.dummy import fill_with_noise
from .models.loader import load_weights
from .models.registry import describe
from .ops.backend import choose
from .resolve import resolve
from .spec.build import plan_drafter
from .spec.ensemble import Ensemble
from .units import format_bytes


class Blueprint:
    """A model as its config.json describes it, and what serving it will take. Nothing is loaded yet."""

    def __init__(self, directory: Path, config: EngineConfig) -> None:
        self._config, self._model = config, describe(directory)
        self._drafter = plan_drafter(config, self._model)
        size = measure(self._lay_out, self._model.facts.vocab_size)
        facts = replace(self._model.facts, recurrent=bool(size.state))  # if only by its drafter
        self.facts: ModelFacts = facts
        checked = config.sanitizer in ("off", "stamps")  # or would ask the device
        self.uniform = config.device.startswith("cuda") and checked and size.recordable
        """Are steps of windows padded to a few shapes, so that they can be recorded?"""
        self._footprint = Footprint(size, table_bytes, config.sanitizer, self.records)

    @property
    def records(self) -> bool:
        return self.uniform and not self._config.eager

    @property
    def measures(self) -> bool:
        """Can it be found out what steps take, once there are weights?"""
        return self._config.device.startswith("cuda") and self._config.sanitizer == "off"

    @cached_property
    def capacity(self) -> CapacityPlan:
        """As far as can be told without weights: what steps take is an estimate."""
        return self._plan(self._footprint, self.facts, _available(self._config))

    @cached_property
    def at_most(self) -> CapacityPlan:
        """What is left if steps take nothing: whatever they take, there will be no more, nor a longer context."""
        footprint = replace(self._footprint, measured=UNMEASURED)
        return self._plan(footprint, self.facts, _available(self._config))

    def measured(self, steps: StepBytes, available: int) -> CapacityPlan:
        """With what steps take, on a device that has so much for all of it. The model is there by then, and has no
        more positions than `at_most` has."""
        facts = replace(self.facts, max_positions=self.at_most.limits.max_model_len)
        plan = self._plan(replace(self._footprint, measured=steps), facts, available)
        if plan.parts.total > available:
            raise ConfigError(
                f"memory={self._config.memory!r} is more than {self._config.device} has to give, "
                f"{format_bytes(available)}: give less\n{plan.render()}"
            )
        return plan

    def _plan(self, footprint: Footprint, facts: ModelFacts, available: int | None) -> CapacityPlan:
        config = self._config
        limits = resolve(config, facts, footprint.costs(config.page_size), available)
        return make_plan(config, self.facts, limits, footprint)

    def check_device(self) -> None:
        device = self._config.device
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={device!r}: torch finds no CUDA device here; use device='cpu'")

    def build(self, weights_of: CausalLM | None = None) -> Ensemble:
        """With the weights in the directory. Those of a model of it that was built before spare loading them, if they
        lie in memory as this one wants them."""
        config = self._config
        self.check_device()
        if config.device == "cpu" and config.dtype == "bfloat16":
            ensure_safe_bf16()
        plan = self.at_most if self.measures else self.capacity
        ensemble = self._lay_out(max_positions(plan.limits))
        model, drafter = ensemble.model, ensemble.drafter
        if weights_of is not None and type(weights_of.ops) is type(model.ops):
            pack(model, model.ops, config.device)
            model.load_state_dict(weights_of.state_dict(keep_vars=True), assign=True)
        else:
            self._load(model, self._model.directory, self._model.rename)
        if self._drafter and drafter:
            for trained, files in zip(drafter.trained, self._drafter.files, strict=True):
                self._load(trained, files.directory, files.rename)
            drafter.check()
        pack(ensemble.to(config.device), model.ops, config.device)
        return ensemble

    def _load(self, model: nn.Module, directory: Path, rename: Rename) -> None:
        config = self._config
        if config.load_format == "dummy":
            fill_with_noise(model, torch.device(config.device), config.seed)
        else:
            load_weights(model, directory, rename, device=config.device)

    def _lay_out(self, positions: int) -> Ensemble:
        """On no device."""
        build = Build(
            ops=choose(self._config.chosen_backend, exact=self._config.exact),
            dtype=getattr(torch, self._config.dtype),
            state_dtype=getattr(torch, self._config.state_dtype),
            max_positions=positions,
        )
        with torch.device("meta"):
            model = self._model.build(build)
            return Ensemble(model, self._drafter.lay_out(build, model) if self._drafter else None)


def _available(config: EngineConfig) -> int | None:
    found = available_bytes(config.device)
    if found is None and config.memory is None:
        raise ConfigError(
            f"device={config.device!r} is not here to ask how much is free: give memory='80GiB' or so"
        )
    return found
