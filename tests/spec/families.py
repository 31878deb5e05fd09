"""One tiny model for each family of state: those of prefix reuse, and two more."""

from __future__ import annotations

from pathlib import Path

from tests import reuse
from tests.evidence import Library
from tests.models.conformance import Oracle, Tiny
from tests.models.test_kimi_linear import MODELS as KIMI
from tests.reuse.families import Found

FURTHER = {
    "kda": KIMI["kimi_linear-dense"],
    "selective-scan": Tiny("MambaForCausalLM", dict(hidden_size=32, num_hidden_layers=2, state_size=8)),
}
FAMILIES = (*reuse.families.FAMILIES, *FURTHER)


def make(family: str, library: Library, directory: Path) -> Found:
    if family in FURTHER:
        return directory, Oracle(FURTHER[family], directory)
    return reuse.families.make(family, library, directory)
