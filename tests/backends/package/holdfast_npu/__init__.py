"""A backend of another package, as one for an NPU would be: its own kernels, its own order of every state's axes.

Holdfast finds it by the entry point beside this folder; nothing else tells of it.
"""

from __future__ import annotations

from torch import Tensor

from holdfast.config import ConfigError
from holdfast.ops.backend import TEMPORAL_AXES, Ops
from holdfast.ops.places import TemporalState
from holdfast.ops.step import StateStep

ORDERS = {
    "gated_delta": ("key", "value", "head"),
    "kda": ("value", "key", "head"),
    "selective_scan": ("state", "channel"),
    "ssd": ("state", "head", "channel"),
}
launched: list[str] = []
"""The kernels of this package that ran."""


class NpuOps(Ops):
    def __init__(self) -> None:
        super().__init__("npu", ORDERS)

    def silu(self, x: Tensor) -> Tensor:
        """A kernel of its own."""
        launched.append("silu")
        return x / (1 + (-x).exp())

    def ssd(
        self,
        x: Tensor,
        b: Tensor,
        c: Tensor,
        dt: Tensor,
        log_decay: Tensor,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        launched.append("ssd")
        assert pool.saved.shape[1:] == (b.shape[-1], x.shape[-2], x.shape[-1]), "not the order asked for"
        return super().ssd(x, b, c, dt, log_decay, pool, step)


def make(*, exact: bool) -> Ops:
    if exact:
        raise ConfigError("backend='npu' has no exact mode; leave exact out")
    return NpuOps()


def make_misordered(*, exact: bool) -> Ops:
    return Ops("npu_misordered", {**TEMPORAL_AXES, "ssd": ("head", "channel", "row")})


def make_nothing(*, exact: bool) -> None:
    return None
