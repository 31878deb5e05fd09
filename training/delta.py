"""The gated delta rule for training: whole sequences in chunks, differentiable, in plain torch.

    u_t = beta_t (v_t - g_t S_{t-1}^T k_t)      S_t = g_t S_{t-1} + k_t u_t^T      o_t = S_t^T q_t

Within a chunk everything is a product of small matrices, for all chunks at once; from chunk to chunk the state goes
S' = M S + B, one small product after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 64


def gated_delta(q: Tensor, k: Tensor, v: Tensor, log_g: Tensor, beta: Tensor) -> Tensor:
    """From an empty state, in float32.

    q, k         [B, T, H, K]   T a multiple of CHUNK
    v            [B, T, H, V]
    log_g, beta  [B, T, H]
    result       [B, T, H, V]
    """
    q, k, v = (_chunks(x) for x in (q, k, v))  # [B, H, N, CHUNK, size]
    log_g, beta = (_chunks(x[..., None]) for x in (log_g, beta))
    since_start = log_g.cumsum(-2)
    decay = since_start.exp()
    above = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (since_start - since_start.mT).masked_fill(above, -torch.inf).exp()

    solved = UnitLowerInverse.apply((beta * between * (k @ k.mT)).tril(-1))
    known = solved @ torch.cat((beta * v, beta * decay * k), -1)
    from_values, from_state = known.split((v.shape[-1], k.shape[-1]), -1)

    to_end = (k * (since_start[..., -1:, :] - since_start).exp()).mT  # [B, H, N, K, CHUNK]
    keep = decay[..., -1:, :] * torch.eye(k.shape[-1], device=k.device)
    states = _states(keep - to_end @ from_state, to_end @ from_values)
    u = from_values - from_state @ states
    out = (decay * q) @ states + (between * (q @ k.mT)) @ u
    return out.flatten(2, 3).transpose(1, 2)


@torch.compiler.disable  # a loop over chunks: nothing to fuse, and long to compile
def _states(m: Tensor, b: Tensor) -> Tensor:
    return States.apply(m, b)


def _chunks(x: Tensor) -> Tensor:
    return x.float().transpose(1, 2).contiguous().unflatten(2, (-1, CHUNK))


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower A, from blocks twice as large each time.

    The inverse of [[P, 0], [C, Q]] is [[P', 0], [-Q' C P', Q']]. A sum of powers of A would be as quick, but where
    keys are alike the powers grow beyond what float32 can subtract again.
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        place = torch.arange(lower.shape[-1], device=lower.device)
        inverse = torch.eye(lower.shape[-1], device=lower.device).expand_as(lower)
        for size in (2**n for n in range((lower.shape[-1] - 1).bit_length())):
            same_pair = place[:, None] // (2 * size) == place // (2 * size)
            corner = lower * (same_pair & (place[:, None] // size > place // size))
            inverse = inverse - (corner if size == 1 else inverse @ corner @ inverse)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


class States(torch.autograd.Function):
    """The state before each chunk: S_0 = 0, S_{n+1} = M_n S_n + B_n. M [.., N, K, K], B and S [.., N, K, V]."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, b: Tensor) -> Tensor:
        states = b.new_zeros(b.shape)
        flat_m, flat_b, flat = (x.flatten(0, 1) for x in (m, b, states))
        for n in range(b.shape[2] - 1):
            flat[:, n + 1] = torch.baddbmm(flat_b[:, n], flat_m[:, n], flat[:, n])
        ctx.save_for_backward(m, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        m, states = ctx.saved_tensors
        grad_b = grad.new_zeros(grad.shape)  # of S_{n+1}, at n
        flat_m, flat_grad, flat = (x.flatten(0, 1) for x in (m, grad.contiguous(), grad_b))
        for n in range(grad.shape[2] - 2, -1, -1):
            flat[:, n] = torch.baddbmm(flat_grad[:, n + 1], flat_m[:, n + 1].mT, flat[:, n + 1])
        return grad_b @ states.mT, grad_b


def step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, log_g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: the definition. state [B, H, K, V]; q, k [B, H, K]; v [B, H, V]; log_g, beta [B, H]."""
    state = log_g.exp()[..., None, None] * state
    u = beta[..., None] * (v - (k[..., None, :] @ state).squeeze(-2))
    state = state + k[..., None] * u[..., None, :]
    return (q[..., None, :] @ state).squeeze(-2), state
