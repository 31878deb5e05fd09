"""Qwen3-Next (Alibaba): gated delta nets beside gated attention, as in Qwen3.5, with experts as in Qwen3-MoE.

Only the files differ: q, k, v, z and b, a of a delta net come in two tensors, sorted by key head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import qwen3_5
from .base import Architecture, Rules
from .fields import Fields
from .qwen3_5 import Qwen35Config, build_model, build_mtp, facts
from .qwen3_moe import expert_rules, read_experts


def parse(values: Mapping[str, Any]) -> Qwen35Config:
    fields = Fields(values, "config.json")
    fields.only("use_sliding_window", False)
    moe, dense_layers = read_experts(fields, normalised=True, shared=True)
    inner = fields.integer("intermediate_size", default=5632)
    return qwen3_5.read(fields, inner=inner, moe=moe, dense_layers=dense_layers)


def rules(config: Qwen35Config) -> Rules:
    return (*expert_rules(r"model\.layers\.(\d+)\."), *qwen3_5.rules(config))


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules, mtp=build_mtp)
