"""What a step hands to every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ConfigError
from ..distributed.group import Group
from ..memory.kv_pool import KVPool
from ..memory.state_pool import StatePool
from ..ops.backend import Ops
from ..ops.rounding import GREATEST
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

    def unscaled_state_dtype(self, mixer: str) -> torch.dtype:
        """For mixers whose states have no scales."""
        if self.state_dtype in GREATEST:
            name = str(self.state_dtype).removeprefix("torch.")
            raise ConfigError(
                f"state_dtype={name!r} needs scales, which {mixer} has not; use 'float32' or 'bfloat16'"
            )
        return self.state_dtype
