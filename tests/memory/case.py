"""What a driver is to drive."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holdfast.config import Limits
from holdfast.memory.spec import ConvSpec, StateSpec, TensorSpec

from .oracle import Shape

LAYER, CONV = "mixer", "x"
ORDERS = {"reference": ("head", "value", "key"), "reference_kv": ("head", "key", "value")}


SMALL = Shape()


@dataclass(frozen=True)
class Setup:
    """A pool with one layer: how often it folds, how long its windows are, what its state looks like."""

    grid: int
    window: int
    page: int
    shape: Shape = SMALL
    state_dtype: torch.dtype = torch.float32
    backend: str = "reference"
    exact: bool = False
    decay: str = "mixed"
    rows: int = 3
    spare_slots: int = 6

    @property
    def limits(self) -> Limits:
        return Limits(
            max_num_seqs=self.rows,
            max_num_batched_tokens=1,
            max_model_len=1,
            vocab_size=1,
            page_size=self.page,
            num_pages=0,
            num_slots=self.rows + self.spare_slots,
            fold_every=self.grid,
            max_window=self.window,
        )

    @property
    def spec(self) -> StateSpec:
        heads, key, value = self.shape.value_heads, self.shape.key_dim, self.shape.value_dim
        sizes = {"head": heads, "value": value, "key": key}
        return StateSpec(
            conv={CONV: ConvSpec(self.shape.channels, self.shape.width, torch.float32)},
            temporal=TensorSpec(sizes, self.state_dtype, order=ORDERS[self.backend], scaled="key"),
            entry={
                "k": TensorSpec({"head": self.shape.key_heads, "key": key}, torch.float32),
                "u": TensorSpec({"head": heads, "value": value}, torch.float32),
                "log_g": TensorSpec({"head": heads}, torch.float32),
            },
        )

    @property
    def tolerance(self) -> float:
        """Of an output or a state, in units of 1 + the largest value expected."""
        if self.decay == "exactly":
            return 0.0
        # in a narrow state, one element that fell to the other side of a tie is 2^-8 off until it is forgotten
        return {torch.float32: 5e-6, torch.float8_e4m3fn: 1e-1}.get(self.state_dtype, 4e-2)
