"""The Triton kernels as a backend: what is not overridden here runs as the reference does."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import triton as attention
from .attention.heads import Heads
from .backend import Ops
from .causal_conv import triton as causal_conv
from .cursors import triton as cursors
from .cursors.reference import Committed, Cursors, Standing
from .gated_delta import triton as gated_delta
from .gated_delta import triton_runs as gated_delta_runs
from .gated_delta.front import DeltaInputs, DeltaWeights
from .gating import triton as gating
from .norm import triton as norm
from .places import ConvState, KVState, TemporalState
from .step import StateStep


class TritonOps(Ops):
    def __init__(self) -> None:
        super().__init__("triton", {"gated_delta": gated_delta.ORDER})

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False) -> Tensor:
        return norm.rms_norm(x, weight, eps, zero_centred=zero_centred)[1]

    def add_rms_norm(
        self, x: Tensor, added: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False
    ) -> tuple[Tensor, Tensor]:
        return norm.rms_norm(x, weight, eps, zero_centred=zero_centred, added=added)

    def gated_rms_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False
    ) -> Tensor:
        if weight.dim() > 1:  # norms of their own for parts of a row
            return super().gated_rms_norm(x, gate, weight, eps, gate_first=gate_first)
        return norm.gated_rms_norm(x, gate, weight, eps, gate_first=gate_first)

    def silu_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        return gating.gate_mul(gate, x, silu=True)

    def sigmoid_mul(self, gate: Tensor, x: Tensor) -> Tensor:
        return gating.gate_mul(gate, x, silu=False)

    def begin(self, at: Cursors, rows: Tensor, counts: Tensor, *, num_windows: int, grid: int) -> Standing:
        return cursors.begin(at, rows, counts, num_windows=num_windows, grid=grid)

    def commit(self, at: Cursors, rows: Tensor, stood: Standing, accepted: Tensor) -> Committed:
        return cursors.commit(at, rows, stood, accepted)

    def absorbed(
        self, table: Tensor, rows: Tensor, counts: Tensor, position: Tensor, lane: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return cursors.absorbed(table, rows, counts, position, lane, offset)

    def attention(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        heads: Heads,
        pool: KVState,
        pages: Tensor,
        step: StateStep,
    ) -> Tensor:
        turn = None if heads.turn is None else (heads.turn.cos, heads.turn.sin)
        queries = attention.prepare(queries, keys, values, pool, pages, step, norm=heads.norms, rotary=turn)
        return attention.paged_attention(queries, pool, pages, step, heads.scale)

    def latent_attention(
        self,
        queries: Tensor,
        latents: Tensor,
        pool: KVState,
        pages: Tensor,
        step: StateStep,
        scale: float,
        *,
        value_dim: int,
    ) -> Tensor:
        attention.write_kv(latents[:, None], latents[:, None, :0], pool, pages, step)
        return attention.paged_attention(queries, pool, pages, step, scale, value_dim=value_dim)

    def causal_conv(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
    ) -> Tensor:
        if _by_reference(pool, step):
            return super().causal_conv(x, weight, bias, pool, step)
        return causal_conv.causal_conv(x, weight, bias, pool, step)

    def short_conv(
        self, gated: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
    ) -> Tensor:
        if _by_reference(pool, step):
            return super().short_conv(gated, weight, bias, pool, step)
        return causal_conv.short_conv(gated, weight, bias, pool, step)

    def delta_net(
        self,
        inputs: DeltaInputs,
        weights: DeltaWeights,
        conv: ConvState,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        value_heads, key_dim, value_dim = pool.saved.shape[1:]
        if _by_reference(pool, step) or not _is_power_of_two(key_dim):
            return super().delta_net(inputs, weights, conv, pool, step)
        qk, v, log_g, beta = causal_conv.delta_front(
            inputs, weights, conv, step, key_dim=key_dim, values=value_heads * value_dim
        )
        v = v.unflatten(-1, (value_heads, value_dim))
        out, scale = torch.empty_like(v), key_dim**-0.5
        if step.num_windows:
            gated_delta.windows(qk, v, log_g, beta, pool, step, out, scale=scale)
        if len(step.rows) > step.num_windows:
            gated_delta_runs.runs(qk, v, log_g, beta, pool, step, out, scale=scale)
        return out


def _by_reference(pool: ConvState | TemporalState, step: StateStep) -> bool:
    """Trees are not in these kernels yet, and they do not tell a watch what they touch."""
    return step.tree is not None or pool.watch is not None


def _is_power_of_two(size: int) -> bool:
    return size >= gated_delta.LEAST and not size & (size - 1)
