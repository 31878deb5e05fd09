"""What a step hands to every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..distributed.group import Group
from ..memory.kv_pool import KVPool
from ..memory.state_pool import StatePool
from ..ops.backend import Ops
from ..ops.step import StateStep


@dataclass(frozen=True)
class Batch:
    """tokens [T] ids, positions [T] of the flat batch; the pools; where every lane stands."""

    tokens: Tensor
    positions: Tensor
    step: StateStep
    state: StatePool
    kv: KVPool


@dataclass(frozen=True)
class Build:
    """What a layer needs to know when it is made."""

    ops: Ops
    dtype: torch.dtype
    state_dtype: torch.dtype
    max_positions: int
    group: Group = Group()  # noqa: RUF009  frozen
