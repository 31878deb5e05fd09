"""One tiny model of each family of state, in hub format, made when it is first asked for."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

from tests.models.conformance import VOCAB as VOCAB
from tests.models.conformance import Tiny
from tests.random_model import write_byte_tokenizer
from tests.spec.formats import WRITERS, Target, write_mtp

BASE: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
)
DELTA: dict[str, Any] = dict(
    head_dim=16,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
)
MAMBA: dict[str, Any] = dict(hidden_size=32, num_heads=2, head_dim=32, state_size=8, n_groups=1)


def _layers(*kinds: str) -> dict[str, Any]:
    return dict(num_hidden_layers=len(kinds), layer_types=list(kinds))


MODELS = {
    "short-convolution": Tiny(
        "Lfm2ForCausalLM",
        BASE | dict(block_multiple_of=16) | _layers("conv", "full_attention", "conv"),
    ),
    "gated-delta": Tiny("Qwen3_5ForCausalLM", BASE | DELTA | _layers("linear_attention", "full_attention")),
    "state-space": Tiny("Mamba2ForCausalLM", MAMBA | dict(num_hidden_layers=2)),
    "attention": Tiny("Qwen3ForCausalLM", BASE | dict(num_hidden_layers=2, head_dim=16)),
}


WITH_MTP = ("gated-delta",)
"""Those that bring a head of their own."""


@functools.cache
def directory(name: str) -> Path:
    scratch = tempfile.TemporaryDirectory(prefix="holdfast-fuzz-")
    _kept.append(scratch)  # removed when the process ends
    path = Path(scratch.name)
    MODELS[name].build().save_pretrained(path)
    write_byte_tokenizer(path)
    return write_mtp(path, path) if name in WITH_MTP else path


@functools.cache
def head(method: str, name: str) -> Path:
    """A drafter for that model."""
    return WRITERS[method](Target.of(directory(name)), directory(name) / method)


_kept: list[tempfile.TemporaryDirectory[str]] = []
