"""Root-mean-square norms, in plain torch, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = False) -> Tensor:
    """x / rms(x) * weight, or * (1 + weight) where the model stores its weights around zero. Last axis."""
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    if zero_centred:
        return (normed * (1.0 + weight.float())).to(x.dtype)
    return weight * normed.to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(x) * silu(gate); the product in float32."""
    normed = rms_norm(x, weight, eps)
    return (normed.float() * torch.nn.functional.silu(gate.float())).to(x.dtype)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| in float32, last axis."""
    return x.float() * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + eps)
