"""The drafter that a config asks for, checked against the model that it drafts for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config import ConfigError, EngineConfig, SpeculativeConfig
from ..layers.batch import Build
from ..models import dflash, eagle
from ..models.base import CausalLM, Rename
from ..models.registry import ARCHITECTURES, Description, describe, read_config
from .dflash import DFlash
from .drafter import PATIENCE, Drafter
from .eagle import Eagle
from .eagle_multi import EagleMulti
from .eagle_tree import EagleTree
from .mtp import MTP, Previous, head_renamer
from .ngram import NGram
from .standalone import Standalone


@dataclass(frozen=True)
class Files:
    directory: Path
    rename: Rename


@dataclass(frozen=True)
class DrafterPlan:
    """How to lay it out beside the model, and which files fill what it has of its own."""

    lay_out: Callable[[Build, CausalLM], Drafter]
    files: tuple[Files, ...] = ()


def plan_drafter(engine: EngineConfig, model: Description) -> DrafterPlan | None:
    """None if the config asks for none. Nothing is loaded yet."""
    config = engine.speculative_config
    if config is None:
        return None
    if config.method == "standalone":
        return _standalone(config, engine.max_model_len, model)
    if config.method == "mtp":
        return _mtp(config, model)
    if config.method == "eagle":
        return _eagle(config)
    if config.method == "eagle_multi":
        return _eagle_multi(config)
    if config.method == "dflash":
        # under a sanitizer every token is absorbed at once
        return _dflash(config, remembers=0 in config.depths and engine.sanitizer == "off")
    lookup = {"longest": config.prompt_lookup_max, "shortest": config.prompt_lookup_min}
    return DrafterPlan(lambda build, model: NGram(max(config.depths), build.ops, **lookup))


def _standalone(config: SpeculativeConfig, max_model_len: int | None, model: Description) -> DrafterPlan:
    own = describe(_directory(config))
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
        lambda build, model: Standalone(depth, own.build(build)), (Files(own.directory, own.rename),)
    )


def _eagle(config: SpeculativeConfig) -> DrafterPlan:
    directory, depth = _directory(config), max(config.depths)
    own = eagle.parse(read_config(directory), f"{directory}/config.json")

    def lay_out(build: Build, model: CausalLM) -> Drafter:
        head, reads = own.build(build, model), own.reads(len(model.blocks))
        if config.topk == 1:
            return Eagle(depth, build, head, model, reads)
        levels = config.num_speculative_tokens
        sizes = {"nodes": config.most_drafts, "levels": levels, "topk": config.topk}
        return EagleTree(build, head, model, reads, **sizes)

    return DrafterPlan(lay_out, (Files(directory, own.rename),))


def _eagle_multi(config: SpeculativeConfig) -> DrafterPlan:
    depth = max(config.depths)
    directories = [_directory(config) / str(number) for number in range(depth)]
    for number, directory in enumerate(directories):
        if not directory.is_dir():
            raise ConfigError(
                f"speculative_config: {depth} drafts need a head for each, in directories "
                f"0 to {depth - 1} of {_directory(config)}; there is no {number}"
            )
    own = [eagle.parse(read_config(directory), f"{directory}/config.json") for directory in directories]

    def lay_out(build: Build, model: CausalLM) -> Drafter:
        heads = [head.build(build, model, f"eagle.{number}") for number, head in enumerate(own)]
        return EagleMulti(build, heads, model, own[0].reads(len(model.blocks)))

    files = zip(directories, (head.rename for head in own), strict=True)
    return DrafterPlan(lay_out, tuple(Files(*each) for each in files))


def _dflash(config: SpeculativeConfig, *, remembers: bool) -> DrafterPlan:
    directory, depth = _directory(config), max(config.depths)
    own = dflash.parse(read_config(directory), f"{directory}/config.json")

    def lay_out(build: Build, model: CausalLM) -> Drafter:
        head, known = own.build(build, model, depth=depth), None
        if remembers:
            known = Previous(build, "known", head.known_width, longer=PATIENCE)
        return DFlash(depth, head, model, own.layer_ids, own.mask_token, known)

    return DrafterPlan(lay_out, (Files(directory, own.rename),))


def _directory(config: SpeculativeConfig) -> Path:
    assert config.model is not None
    return Path(config.model).expanduser()


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
        (Files(model.directory, head_renamer(model.rename)),),
    )
