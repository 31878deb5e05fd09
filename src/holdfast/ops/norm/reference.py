"""Root-mean-square norms, in plain torch, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False) -> Tensor:
    """x / rms(x) * weight, or * (1 + weight) where the model stores its weights around zero. Last axis.

    The result has the weight's dtype: a residual stream may be wider than what the layers compute in.
    """
    wide = x.float()
    normed = (
        wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    )  # F.rms_norm takes half again as long
    if zero_centred:
        return normed.mul_(1.0 + weight.float()).to(weight.dtype)
    return normed.to(weight.dtype).mul_(weight)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False
) -> Tensor:
    """rms_norm(x) * silu(gate), or rms_norm(x * silu(gate)); the product in float32."""
    opened = F.silu(gate.float())
    if gate_first:
        return rms_norm(x.float() * opened, weight, eps)
    return (rms_norm(x, weight, eps).float() * opened).to(weight.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| in float32, last axis."""
    wide = x.float()
    square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square()
    return wide * square.add_(eps).rsqrt_()
