"""Which architectures there are, and what a model directory describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import ConfigError, ModelFacts
from ..layers.batch import Build
from . import (
    bamba,
    falcon_h1,
    falcon_mamba,
    granitemoehybrid,
    jamba,
    kimi_linear,
    lfm2,
    lfm2_moe,
    llama,
    mamba,
    mamba2,
    minimax,
    nemotron_h,
    olmo_hybrid,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    zamba2,
)
from .base import Architecture, CausalLM, Rename, renamer

ARCHITECTURES: dict[str, Architecture] = {
    "BambaForCausalLM": bamba.ARCHITECTURE,
    "FalconH1ForCausalLM": falcon_h1.ARCHITECTURE,
    "FalconMambaForCausalLM": falcon_mamba.ARCHITECTURE,
    "GraniteMoeHybridForCausalLM": granitemoehybrid.ARCHITECTURE,
    "JambaForCausalLM": jamba.ARCHITECTURE,
    "KimiLinearForCausalLM": kimi_linear.ARCHITECTURE,
    "Lfm2ForCausalLM": lfm2.ARCHITECTURE,
    "Lfm2MoeForCausalLM": lfm2_moe.ARCHITECTURE,
    "LlamaForCausalLM": llama.ARCHITECTURE,
    "Mamba2ForCausalLM": mamba2.ARCHITECTURE,
    "MambaForCausalLM": mamba.ARCHITECTURE,
    "MiniMaxForCausalLM": minimax.ARCHITECTURE,
    "NemotronHForCausalLM": nemotron_h.ARCHITECTURE,
    "OlmoHybridForCausalLM": olmo_hybrid.ARCHITECTURE,
    "Qwen3ForCausalLM": qwen3.ARCHITECTURE,
    "Qwen3MoeForCausalLM": qwen3_moe.ARCHITECTURE,
    "Qwen3NextForCausalLM": qwen3_next.ARCHITECTURE,
    "Qwen3_5ForCausalLM": qwen3_5.ARCHITECTURE,
    "Qwen3_5ForConditionalGeneration": qwen3_5.ARCHITECTURE,
    "Qwen3_5MoeForCausalLM": qwen3_5_moe.ARCHITECTURE,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5_moe.ARCHITECTURE,
    "Zamba2ForCausalLM": zamba2.ARCHITECTURE,
}


@dataclass(frozen=True)
class Description:
    """A model as the config.json in its directory describes it."""

    directory: Path
    architecture: Architecture
    config: Any

    @property
    def facts(self) -> ModelFacts:
        return self.architecture.facts(self.config)

    @property
    def rename(self) -> Rename:
        return renamer(self.architecture.rules(self.config))

    def build(self, build: Build) -> CausalLM:
        return self.architecture.build(build, self.config)


def describe(directory: Path) -> Description:
    values = read_config(directory)
    architecture = find(values)
    return Description(directory, architecture, architecture.parse(values))


def read_config(directory: Path) -> Mapping[str, Any]:
    path = directory / "config.json"
    if not directory.is_dir():
        raise ConfigError(
            f"{directory} is not a directory; give one with config.json, *.safetensors, tokenizer.json"
        )
    if not path.is_file():
        raise ConfigError(f"{directory} has no config.json, so it is not a model as the hub stores them")
    try:
        values = json.loads(path.read_text(), object_hook=_special_float)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path} must hold a JSON object")
    return values


def _special_float(value: dict[str, Any]) -> Any:
    """Strict JSON has no infinity, so the hub's files spell it {"__float__": "Infinity"}."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def find(config: Mapping[str, Any]) -> Architecture:
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise ConfigError(f"config.json: architectures must be a list of names, not {names!r}")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    suffix = "ForCausalLM"
    known = sorted(name.removesuffix(suffix) for name in ARCHITECTURES if name.endswith(suffix))
    raise ConfigError(
        f"architecture {', '.join(map(str, names)) or '(none named)'} is not known here; "
        f"known are these, each with {suffix}: {', '.join(known)}"
    )
