"""Falcon Mamba (TII): Mamba, with norms that have no weights over what time steps, B and C are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import mamba
from .base import Architecture


def parse(values: Mapping[str, Any]) -> mamba.MambaConfig:
    fields = mamba.open_fields(values)
    fields.ignore("use_falcon_mambapy")
    return mamba.read(fields, norm="plain", eps=fields.number("mixer_rms_eps", default=1e-6))


ARCHITECTURE = Architecture(parse=parse, facts=mamba.facts, build=mamba.build_model, rules=mamba.rules)
