"""The Triton kernels as a backend: what is not overridden here runs as the reference does, as do trees of a scan."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor

from .acceptance import triton as acceptance
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
from .kda import triton as kda
from .linear import triton as linear
from .lookup import triton as lookup
from .moe import triton as moe
from .moe.reference import Routing
from .norm import triton as norm
from .places import ConvState, KVState, TemporalState, ToKeep
from .sampling import triton as sampling
from .sampling.reference import SamplingRows
from .selective_scan import triton as selective_scan
from .ssd import triton as ssd
from .step import StateStep
from .twins import ahead
from .twins.launch import tell


class TritonOps(Ops):
    records = True

    def __init__(self) -> None:
        orders = {
            "gated_delta": gated_delta.ORDER,
            "kda": kda.ORDER,
            "ssd": ssd.ORDER,
            "selective_scan": selective_scan.ORDER,
        }
        super().__init__("triton", orders)

    def compile_ahead(self, work: Callable[[], object]) -> None:
        ahead.compile_ahead(work)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear.linear(x, weight, bias) if _few(x, weight) else super().linear(x, weight, bias)

    def gated_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None and _few(x, weight):
            return linear.gated(x, weight)
        return super().gated_linear(x, weight, bias)

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False, out: Tensor | None = None
    ) -> Tensor:
        return norm.rms_norm(x, weight, eps, zero_centred=zero_centred, out=out)[1]

    def add_rms_norm(
        self,
        x: Tensor,
        added: Tensor,
        weight: Tensor,
        eps: float,
        *,
        zero_centred: bool = False,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return norm.rms_norm(x, weight, eps, zero_centred=zero_centred, added=added, summed=out)

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

    def route(self, logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
        return moe.route(logits, bias, routing)

    def embedding(self, tokens: Tensor, weight: Tensor) -> Tensor:
        return weight[tokens]  # F.embedding takes 14 us for sixteen tokens

    def experts(
        self, x: Tensor, experts: Tensor, weights: Tensor, up: Tensor, down: Tensor, *, gated: bool
    ) -> Tensor:
        return moe.experts(x, experts, weights, up, down, gated=gated)

    def most_likely(self, logits: Tensor) -> Tensor:
        return sampling.most_likely(logits)

    def sample(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        return sampling.sample(logits, rows)

    begin = staticmethod(cursors.begin)
    commit = staticmethod(cursors.commit)
    absorbed = staticmethod(cursors.absorbed)
    accept = staticmethod(acceptance.accept)
    write_drafts = staticmethod(acceptance.write_drafts)
    look_up = staticmethod(lookup.look_up)

    def commit_keeping(
        self,
        at: Cursors,
        stood: Standing,
        accepted: Tensor,
        keep: ToKeep,
        step: StateStep,
    ) -> Committed:
        causal_conv.tell(keep.x, None, keep.state, step)
        return cursors.commit_keeping(at, stood, accepted, keep, step)

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
        if _branches(step):
            return super().attention(queries, keys, values, heads, pool, pages, step)
        turn = None if heads.turn is None else (heads.turn.cos, heads.turn.sin)
        queries = attention.prepare(queries, keys, values, pool, pages, step, norm=heads.norms, rotary=turn)
        return attention.paged_attention(queries, pool, pages, step, heads.scale)

    def keep_kv(
        self, keys: Tensor, values: Tensor, heads: Heads, pool: KVState, pages: Tensor, step: StateStep
    ) -> None:
        if _branches(step):
            return super().keep_kv(keys, values, heads, pool, pages, step)
        turn = None if heads.turn is None else (heads.turn.cos, heads.turn.sin)
        attention.prepare(keys[:, :0], keys, values, pool, pages, step, norm=heads.norms, rotary=turn)

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
        return causal_conv.causal_conv(x, weight, bias, pool, step)

    def short_conv(
        self, gated: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
    ) -> Tensor:
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
        if not self.records_delta(key_dim):
            return super().delta_net(inputs, weights, conv, pool, step)
        tell(pool, step, len(inputs.qkv))
        if step.longest_window <= 1 and step.num_windows == len(step.rows):
            causal_conv.tell(inputs.qkv, weights.conv, conv, step)
            out = inputs.qkv.new_empty(len(inputs.qkv), value_heads, value_dim)
            return gated_delta.decode(inputs, weights, conv, pool, step, out, eps=causal_conv.EPS)
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

    def records_delta(self, key_dim: int) -> bool:
        return key_dim >= gated_delta.LEAST and not key_dim & (key_dim - 1)

    def kda(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_g: Tensor,
        beta: Tensor,
        pool: TemporalState,
        step: StateStep,
    ) -> Tensor:
        return kda.advance(q, k, v, log_g, beta, pool, step, _out(v))

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
        return ssd.advance(x, b, c, dt, log_decay, pool, step, _out(x))

    def selective_scan(
        self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, a: Tensor, pool: TemporalState, step: StateStep
    ) -> Tensor:
        if step.tree is not None:
            return super().selective_scan(x, b, c, dt, a, pool, step)
        return selective_scan.advance(x, b, c, dt, a, pool, step, _out(x))


def _few(x: Tensor, weight: Tensor) -> bool:
    """In the interpreter all is left to the library: whole models run there, and most of the time would be this."""
    return not triton.knobs.runtime.interpret and linear.takes(x, weight)


def _out(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=torch.float32, device=like.device)


def _branches(step: StateStep) -> bool:
    """Then keys are turned by another position than that of the place where they are stored."""
    return step.tree is not None and not step.tree.straight
