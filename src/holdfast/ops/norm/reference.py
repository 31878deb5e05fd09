"""Root-mean-square norms, in plain torch, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False) -> Tensor:
    """x / rms(x) * weight, or * (1 + weight) where the model stores its weights around zero. Last axis.

    The result has the weight's dtype: a residual stream may be wider than what the layers compute in.
    """
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if zero_centred:
        return (normed * (1.0 + weight.float())).to(weight.dtype)
    return weight * normed.to(weight.dtype)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, gate_first: bool = False
) -> Tensor:
    """rms_norm(x) * silu(gate), or rms_norm(x * silu(gate)); the product in float32."""
    opened = torch.nn.functional.silu(gate.float())
    if gate_first:
        return rms_norm(x.float() * opened, weight, eps)
    return (rms_norm(x, weight, eps).float() * opened).to(weight.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| in float32, last axis."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
