"""One tiny model for each family of state, whose state matters (tests/evidence, tests/models/conformance)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests import evidence
from tests.evidence import Library
from tests.models.conformance import Oracle, Tiny

MAMBA2 = Tiny(
    "Mamba2ForCausalLM",
    dict(hidden_size=32, num_hidden_layers=3, num_heads=8, head_dim=8, n_groups=2, state_size=16),
)
NAMED = {"convolution": "lfm2-hybrid", "gated-delta": "qwen3_5-hybrid", "attention": "lfm2-attention"}
FAMILIES = (*NAMED, "state-space")

Found = tuple[Path, evidence.Oracle]
Find = Callable[[str], Found]


def make(family: str, library: Library, directory: Path) -> Found:
    if family == "state-space":
        return directory, Oracle(MAMBA2, directory)
    return library.directory(NAMED[family]), library.oracle(NAMED[family])
