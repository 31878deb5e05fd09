"""The drafter that a config asks for, checked against the model that it drafts for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config import ConfigError, EngineConfig, SpeculativeConfig
from ..layers.batch import Build
from ..models.base import CausalLM, Rename
from ..models.registry import ARCHITECTURES, Description, describe
from .drafter import Drafter
from .mtp import MTP, head_renamer
from .ngram import NGram
from .standalone import Standalone


@dataclass(frozen=True)
class DrafterPlan:
    """How to lay it out beside the model, and which files fill what it has of its own."""

    lay_out: Callable[[Build, CausalLM], Drafter]
    directory: Path | None = None
    rename: Rename | None = None


def plan_drafter(engine: EngineConfig, model: Description) -> DrafterPlan | None:
    """None if the config asks for none. Nothing is loaded yet."""
    config = engine.speculative_config
    if config is None:
        return None
    if config.method == "standalone":
        return _standalone(config, engine.max_model_len, model)
    if config.method == "mtp":
        return _mtp(config, model)
    lookup = {"longest": config.prompt_lookup_max, "shortest": config.prompt_lookup_min}
    return DrafterPlan(lambda build, model: NGram(max(config.depths), **lookup))


def _standalone(config: SpeculativeConfig, max_model_len: int | None, model: Description) -> DrafterPlan:
    assert config.model is not None
    own = describe(Path(config.model).expanduser())
    if own.facts.vocab_size != model.facts.vocab_size:
        raise ConfigError(
            f"speculative_config: {own.directory} has a vocabulary of {own.facts.vocab_size} tokens, the model one "
            f"of {model.facts.vocab_size}; a drafter must have the model's own tokenizer"
        )
    longest, positions = max_model_len or model.facts.max_positions, own.facts.max_positions
    if positions is not None and (longest is None or longest > positions):
        raise ConfigError(
            f"speculative_config: {own.directory} has {positions} positions, fewer than the model may be asked for; "
            f"give max_model_len={positions} or less"
        )
    depth = max(config.depths)
    return DrafterPlan(
        lambda build, model: Standalone(depth, own.build(build)), directory=own.directory, rename=own.rename
    )


def _mtp(config: SpeculativeConfig, model: Description) -> DrafterPlan:
    build_head = model.architecture.mtp
    if build_head is None:
        bring = ", ".join(name for name, architecture in ARCHITECTURES.items() if architecture.mtp)
        raise ConfigError(
            f"speculative_config: method='mtp' needs a model that brings a head for it: {bring}; "
            "use ngram, or standalone with a small model of the same tokenizer"
        )
    depth = max(config.depths)
    return DrafterPlan(
        lambda build, target: MTP(depth, build, build_head(build, model.config), target),
        directory=model.directory,
        rename=head_renamer(model.rename),
    )
