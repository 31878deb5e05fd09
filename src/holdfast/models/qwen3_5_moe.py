"""Qwen3.5 with experts (Alibaba), text: Qwen3.5's mixers, and in every layer experts beside one that sees all tokens.

Qwen3.6 is published as this architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import qwen3_5
from .base import Architecture, Rules
from .qwen3_5 import Qwen35Config, build_model, build_mtp, facts
from .qwen3_moe import expert_rules, read_experts


def parse(values: Mapping[str, Any]) -> Qwen35Config:
    fields = qwen3_5.text_fields(values)
    fields.only("norm_topk_prob", True)
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [], None)
    moe, dense_layers = read_experts(fields, normalised=True, shared=True)
    fields.ignore("intermediate_size")  # no layer is dense
    return qwen3_5.read(fields, inner=moe.inner, moe=moe, dense_layers=dense_layers)


def rules(config: Qwen35Config) -> Rules:
    layer = r"model\.(?:language_model\.)?layers\.(\d+)\."
    return (*expert_rules(layer), *qwen3_5.rules(config))


ARCHITECTURE = Architecture(parse=parse, facts=facts, build=build_model, rules=rules, mtp=build_mtp)
