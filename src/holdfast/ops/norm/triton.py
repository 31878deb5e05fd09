"""The norms' kernels, launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..twins.launch import early
from . import kernels

WIDE = 1024
"""Elements that a program takes at least: narrow rows share one."""


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    zero_centred: bool = False,
    added: Tensor | None = None,
    summed: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x, or x + added, in `summed` if that is given; and its norm, in `out` if that is. x [tokens, size] or
    [tokens, heads, size], the last axis contiguous."""
    size = x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    if out is None:
        out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    if added is None:
        summed = x
    elif summed is None:
        summed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    other = x if added is None else added
    rows = len(x) * heads
    cut, grid = _cut(rows, size)
    if rows:
        kernels.rms_norm[grid](
            x, other, weight, summed, out, *_strides(x), *_strides(other), *_strides(summed), *_strides(out),
            rows, heads, size, eps, ADD=added is not None, ZERO_CENTRED=zero_centred, **cut, **early(x.device),
        )  # fmt: skip
    return summed, out


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False
) -> Tensor:
    size = x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    rows = len(x) * heads
    cut, grid = _cut(rows, size)
    if rows:
        kernels.gated_rms_norm[grid](
            x, gate, weight, out, *_strides(x), *_strides(gate), rows, heads, size, eps,
            GATE_FIRST=gate_first, **cut, **early(x.device),
        )  # fmt: skip
    return out


def _strides(x: Tensor) -> tuple[int, int]:
    """Of tokens and heads."""
    assert x.stride(-1) == 1, x.stride()
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0


def _cut(rows: int, size: int) -> tuple[dict[str, int], tuple[int]]:
    block = triton.next_power_of_2(size)
    each = max(1, WIDE // block)
    warps = min(8, max(1, each * block // 512))
    return {"ROWS": each, "BLOCK": block, "num_warps": warps}, (triton.cdiv(rows, each),)
