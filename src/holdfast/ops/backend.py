"""Which implementation of each operation runs: chosen once, at start, and passed to whoever builds layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config import BACKENDS, ConfigError
from . import journal
from .attention import reference as attention
from .causal_conv import reference as causal_conv
from .gated_delta import reference as gated_delta
from .norm import reference as norm
from .rope import reference as rope
from .sampling import reference as sampling
from .step import ConvState, StateStep, TemporalState

BLOCK = 32
"""Exact mode: operations on tokens see this many rows, always. A multiple of every CPU vector length."""


class Ops:
    """The reference for every operation. A faster backend overrides what it does better."""

    exact = False

    def __init__(self, name: str = "reference", temporal_order: str = "vk") -> None:
        self.name = name
        self.temporal_order = temporal_order
        """Axis order in which this backend's kernels want the temporal state: 'vk' or 'kv'."""

    # tokens in, tokens out: one row never depends on another

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False) -> Tensor:
        return norm.rms_norm(x, weight, eps, zero_centred=zero_centred)

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.gated_rms_norm(x, gate, weight, eps)

    def l2_norm(self, x: Tensor) -> Tensor:
        return norm.l2_norm(x)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def softplus(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return logits.float().log_softmax(-1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope.rotate(x, cos, sin)

    # over lanes, with what they keep

    def attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        pool: tuple[Tensor, Tensor],
        pages: Tensor,
        step: StateStep,
        scale: float,
    ) -> Tensor:
        attention.write_kv(keys, values, pool, pages, step)
        return attention.paged_attention(queries, pool, pages, step, scale, exact=self.exact)

    def causal_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
    ) -> Tensor:
        return causal_conv.causal_conv(x, weight, bias, pool, step)

    def gated_delta(
        self, q: Tensor, k: Tensor, v: Tensor, log_g: Tensor, beta: Tensor, pool: TemporalState, step: StateStep
    ) -> Tensor:
        rule = gated_delta.GatedDelta(gated_delta.ORDERS[self.temporal_order])
        inputs = {"q": q, "k": k, "v": v, "log_g": log_g, "beta": beta}
        out = torch.full(v.shape, torch.nan, device=v.device)
        return journal.advance(rule, inputs, pool, step, out, exact=self.exact)

    def sample(self, logits: Tensor, rows: sampling.SamplingRows) -> Tensor:
        return sampling.sample(logits, rows)


class ExactOps(Ops):
    """The reference with one tile configuration per operation: a token's bits depend on its own past alone."""

    exact = True

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _in_blocks(lambda block: F.linear(block, weight, bias), x)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False) -> Tensor:
        return _in_blocks(lambda block: norm.rms_norm(block, weight, eps, zero_centred=zero_centred), x)

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        return _in_blocks(lambda a, b: norm.gated_rms_norm(a, b, weight, eps), x, gate)

    def l2_norm(self, x: Tensor) -> Tensor:
        return _in_blocks(norm.l2_norm, x)

    def silu(self, x: Tensor) -> Tensor:
        return _in_blocks(F.silu, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return _in_blocks(torch.sigmoid, x)

    def softplus(self, x: Tensor) -> Tensor:
        return _in_blocks(F.softplus, x)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return _in_blocks(super().log_softmax, logits)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return _in_blocks(rope.rotate, x, cos, sin)


def _in_blocks(op: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """op over BLOCK rows at a time, the last block filled up with zeros."""
    count = len(rows[0])
    if not count:
        return op(*rows)
    missing = -count % BLOCK
    padded = [torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) for x in rows]
    blocks = [op(*(x[i : i + BLOCK] for x in padded)) for i in range(0, count, BLOCK)]
    return torch.cat(blocks)[:count]


def choose(name: str, *, exact: bool) -> Ops:
    if name not in BACKENDS:
        raise ConfigError(f"backend={name!r} is not one of {', '.join(BACKENDS)}")
    kind = ExactOps if exact else Ops
    return kind(name, temporal_order="kv" if name == "reference_kv" else "vk")
