"""From a model's directory and the user's options to a model and its limits."""

from __future__ import annotations

from pathlib import Path

import torch

from .config import ConfigError, EngineConfig, ModelFacts
from .cpu_isa import ensure_safe_bf16
from .executor.footprint import table_bytes
from .layers.batch import Build
from .memory.available import available_bytes
from .memory.capacity import CapacityPlan, make_plan
from .memory.sizing import Footprint, max_positions, measure
from .models import registry
from .models.base import CausalLM, renamer
from .models.dummy import fill_with_noise
from .models.loader import load_weights
from .ops.backend import choose
from .resolve import resolve


class Blueprint:
    """A model as its config.json describes it, and what serving it will take. Nothing is loaded yet."""

    def __init__(self, directory: Path, config: EngineConfig) -> None:
        values = registry.read_config(directory)
        self._directory, self._config = directory, config
        self._architecture = registry.find(values)
        self._parsed = self._architecture.parse(values)
        self.facts: ModelFacts = self._architecture.facts(self._parsed)
        facts = self.facts
        footprint = Footprint(measure(self._lay_out_packed, facts.vocab_size), table_bytes, config.sanitizer)
        limits = resolve(config, facts, footprint.costs(config.page_size), _available(config))
        self.capacity: CapacityPlan = make_plan(config, facts, limits, footprint)

    def build_model(self, weights_of: CausalLM | None = None) -> CausalLM:
        """With the weights in the directory, or with those of a model of it that was built before."""
        config = self._config
        if config.device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={config.device!r}: torch finds no CUDA device here; use device='cpu'")
        if config.device == "cpu" and config.dtype == "bfloat16":
            ensure_safe_bf16()
        model = self._lay_out(max_positions(self.capacity.limits))
        if weights_of is not None:
            model.load_state_dict(weights_of.state_dict(keep_vars=True), assign=True)
        elif config.load_format == "dummy":
            fill_with_noise(model, torch.device(config.device), config.seed)
        else:
            rename = renamer(self._architecture.rules(self._parsed))
            load_weights(model, self._directory, rename, device=config.device)
        model.to(config.device).pack(config.device)
        return model

    def _lay_out_packed(self, positions: int) -> CausalLM:
        model = self._lay_out(positions)
        model.pack(self._config.device)
        return model

    def _lay_out(self, positions: int) -> CausalLM:
        """The model on no device."""
        build = Build(
            ops=choose(self._config.backend, exact=self._config.exact),
            dtype=getattr(torch, self._config.dtype),
            state_dtype=getattr(torch, self._config.state_dtype),
            max_positions=positions,
        )
        with torch.device("meta"):
            return self._architecture.build(build, self._parsed)


def _available(config: EngineConfig) -> int | None:
    found = available_bytes(config.device)
    if found is None and config.memory is None:
        raise ConfigError(
            f"device={config.device!r} is not here to ask how much is free: give memory='80GiB' or so"
        )
    return found
