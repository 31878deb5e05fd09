"""The convolution's kernels, launched: windows and runs of a step, and what a layer does around them."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from ..gated_delta.front import DeltaInputs, DeltaWeights
from ..places import ConvState
from ..step import StateStep
from ..twins.launch import early
from . import kernels, reference

CHANNELS = 256
"""Of a program, unless a layer says otherwise."""
TOKENS = 16
"""Of a run, that a program takes."""
WINDOW_TOKENS = 8
"""Of a window, that a program takes at a time."""
EPS = 1e-6
"""Of the length by which a head is divided."""


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep) -> Tensor:
    """As the reference: [tokens, channels] in float32."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    _launch(x, weight, bias, pool, step, out, mode=kernels.PLAIN)
    return out


def short_conv(
    gated: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep
) -> Tensor:
    out = torch.empty(len(gated), len(weight), dtype=gated.dtype, device=gated.device)
    _launch(gated, weight, bias, pool, step, out, mode=kernels.SHORT)
    return out


def delta_front(
    inputs: DeltaInputs, weights: DeltaWeights, pool: ConvState, step: StateStep, *, key_dim: int, values: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys [tokens, 2, H, K], each of length 1; values [tokens, HV * V]; log_g and beta [tokens, HV]"""
    qkv = inputs.qkv
    tokens, channels = qkv.shape
    normed = channels - values
    qk = torch.empty(tokens, 2, normed // 2 // key_dim, key_dim, dtype=qkv.dtype, device=qkv.device)
    v = torch.empty(tokens, values, dtype=qkv.dtype, device=qkv.device)
    _launch(qkv, weights.conv, None, pool, step, qk, mode=kernels.DELTA, rest=v, normed=normed, block=key_dim)
    heads = len(weights.a_log)
    log_g, beta = torch.empty(2, tokens, heads, dtype=torch.float32, device=qkv.device)
    if tokens:
        block = 256
        kernels.gates[(triton.cdiv(tokens * heads, block),)](
            inputs.a, inputs.b, weights.a_log, weights.dt_bias, log_g, beta,
            inputs.a.stride(0), inputs.b.stride(0), tokens * heads, weights.beta_scale,
            HV=heads, BLOCK=block, num_warps=2, **early(qkv.device),
        )  # fmt: skip
    return qk, v, log_g, beta


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    pool: ConvState,
    step: StateStep,
    out: Tensor,
    *,
    mode: Any,
    rest: Tensor | None = None,
    normed: int = 0,
    block: int = CHANNELS,
) -> None:
    tell(x, weight, pool, step)
    channels, width = weight.shape
    lanes, windows = len(step.rows), step.num_windows
    rest = out if rest is None else rest
    common: dict[str, Any] = {"W": width, "CAP": pool.ring.shape[1], "BC": block, "MODE": mode}
    operands = (x, weight, weight if bias is None else bias, out, rest, pool.saved, pool.ring)
    cursors = (step.rows, step.counts, step.offsets, step.position, step.base, step.end_base)
    slots = (step.read_slot, step.write_slot)
    parts = triton.cdiv(channels, block)
    biased = bias is not None
    if windows:
        tokens = min(WINDOW_TOKENS, triton.next_power_of_2(max(1, step.longest_window)))
        kernels.windows[(parts, windows)](
            *operands, *cursors, *slots, *_sources(step, width), x.stride(0), channels, normed, EPS,
            **common, BIASED=biased, TREE=step.tree is not None, **early(x.device),
            BT=tokens, num_warps=max(1, block // 128) * min(tokens, 4),
        )  # fmt: skip
    if lanes > windows:
        first = step.num_window_tokens
        kernels.runs[(parts, triton.cdiv(len(x) - first, TOKENS))](
            *operands, step.lane_of(len(x)), step.rows, step.offsets, step.position, step.base, step.read_slot,
            first, len(x), x.stride(0), channels, normed, EPS, **common, BIASED=biased, BT=TOKENS, num_warps=4,
        )  # fmt: skip
        _keep(x, pool, step, windows, common)


def _keep(x: Tensor, pool: ConvState, step: StateStep, first: int, common: dict[str, Any]) -> None:
    """Of lanes from `first` on."""
    channels, lanes, block = pool.ring.shape[2], len(step.rows), common["BC"]
    kernels.keep[(triton.cdiv(channels, block), lanes - first)](
        x, pool.saved, pool.ring, step.export_table if step.exports else step.rows, len(step.exports), first,
        step.rows, step.counts, step.offsets, step.position, step.base, step.end_base, step.read_slot,
        step.write_slot, x.stride(0), channels, **common, num_warps=max(1, block // 128), **early(x.device),
    )  # fmt: skip


def _sources(step: StateStep, width: int) -> tuple[Tensor, int]:
    """For windows that branch: what `windows` asks for."""
    tree = step.tree
    if tree is None:
        return step.rows, 0
    return step.once(("tree", width), lambda: tree.sources(width).contiguous()), tree.depths.shape[1]


def tell(x: Tensor, weight: Tensor | None, pool: ConvState, step: StateStep) -> None:
    """Tell the watch, if there is one, what the reference would: it runs, over no channels. Without a weight, it only
    keeps."""
    if pool.watch is None:
        return
    if step.uniform:
        pool.watch.used(step.whole())
        return
    ghost = ConvState(pool.saved[..., :0], pool.ring[..., :0], pool.watch)
    if weight is None:
        reference.keep(x[:, :0], ghost, step)
    else:
        reference.causal_conv(x[:, :0], weight[:0], None, ghost, step)
