"""Sampling as a model's authors advise it, in the generation_config.json beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .config import ConfigError
from .params import SamplingParams

ALWAYS = {"repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens"}
IF_DRAWN = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Names in the file, and in SamplingParams."""


def advised_params(directory: Path) -> SamplingParams:
    """The file's values, and SamplingParams' own where it has none.

    do_sample decides whether tokens are drawn. If the file says true, its temperature is 1 unless it names
    another; if it says nothing, a temperature says it. end-of-text tokens are read with the tokenizer.
    """
    path = directory / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    values = _read(path)
    names = ALWAYS | (IF_DRAWN if values.get("do_sample", "temperature" in values) else {})
    advised = {ours: values[theirs] for theirs, ours in names.items() if theirs in values}
    if values.get("do_sample"):
        advised.setdefault("temperature", 1.0)
    try:
        return SamplingParams(**advised)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; give SamplingParams of your own instead") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return {name: value for name, value in values.items() if value is not None}
