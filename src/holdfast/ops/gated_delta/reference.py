"""Gated delta rule, in plain torch. H key heads, HV value heads; value head j reads key head j * H // HV.

    u_t = beta_t (v_t - g_t S_{t-1}^T k_t)      S_t = g_t S_{t-1} + k_t u_t^T      o_t = S_t^T q_t

state    [N, HV, V, K]
inputs   q, k [.., H, K]   v [.., HV, V]   log_g, beta [.., HV]
entries  k [.., H, K] as rounded by the caller   u [.., HV, V]   log_g [.., HV]: the token's own
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import CHUNK
from ..journal import Entries, Inputs, rounded

ORDERS = {"vk": (0, 1, 2, 3), "kv": (0, 1, 3, 2)}


@dataclass(frozen=True)
class GatedDelta:
    """The recurrence for `ops.journal`."""

    axes: tuple[int, ...] = ORDERS["vk"]

    def entries(self, inputs: Inputs) -> Entries:
        return {"k": inputs["k"], "u": torch.zeros_like(inputs["v"], dtype=torch.float32), "log_g": inputs["log_g"]}

    def attend(self, state: Tensor, entries: Entries, inputs: Inputs, at: Tensor, visible: Tensor) -> Tensor:
        lanes, tokens = at.shape
        heads, key_heads = state.shape[1], inputs["q"].shape[2]
        lane = torch.arange(lanes, device=at.device)
        keys = entries["k"].float().transpose(1, 2)  # [N, H, L, K]
        queries = inputs["q"].float()
        probes = torch.stack((inputs["k"].float(), queries), -1)  # [N, T, H, K, 2]
        against_state = state @ _per_value_head(probes.permute(0, 2, 3, 1, 4).flatten(3), heads)
        against_state = against_state.unflatten(-1, (tokens, 2))  # [N, HV, V, T, 2]
        outputs = []
        for t in range(tokens):
            seen = visible[:, t, :, None]
            total, distance = _decays(torch.where(seen, entries["log_g"], 0.0))
            weights = torch.where(seen, distance.exp(), 0.0).transpose(1, 2)  # [N, HV, L]
            dots = _per_value_head(keys @ probes[:, t], heads)  # [N, HV, L, 2]
            values = entries["u"].transpose(1, 2)  # [N, HV, L, V], zero at this token until it is known
            decay = total.exp()[..., None]
            recalled = _sum_entries(weights * dots[..., 0], values)
            recalled = decay * against_state[..., t, 0] + recalled
            u = inputs["beta"][:, t, :, None].float() * (inputs["v"][:, t].float() - recalled)
            real = visible[lane, t, at[:, t]][:, None, None]
            entries["u"][lane, at[:, t]] = torch.where(real, u, entries["u"][lane, at[:, t]])
            read = _sum_entries(weights * dots[..., 1], entries["u"].transpose(1, 2))
            outputs.append(decay * against_state[..., t, 1] + read)
        if not outputs:
            return state.new_zeros(lanes, 0, heads, state.shape[2])
        assert key_heads <= heads
        return torch.stack(outputs, 1)

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        total, distance = _decays(entries["log_g"])
        weighted = (entries["u"] * distance.exp()[..., None]).permute(0, 2, 3, 1)  # [N, HV, V, L]
        keys = _per_value_head(entries["k"].float().transpose(1, 2), state.shape[1])
        return total.exp()[..., None, None] * state + weighted @ keys

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        heads = state.shape[0]
        blocks = {name: x.float().unflatten(0, (-1, CHUNK)).transpose(1, 2) for name, x in inputs.items()}
        q, k = (_per_value_head(blocks[name], heads) for name in "qk")  # [n, HV, CHUNK, K]
        v, log_g, beta = blocks["v"], blocks["log_g"], blocks["beta"][..., None]
        decay = log_g.cumsum(-1).exp()[..., None]  # from the block's start, the token's own included
        between = _pairwise_decay(log_g)  # [n, HV, CHUNK, CHUNK]: from j to i, zero above the diagonal
        system = beta * between * (k @ k.mT)
        known = torch.linalg.solve_triangular(
            system, torch.cat((beta * v, beta * decay * k), -1), upper=False, unitriangular=True
        )
        from_values, from_state = known.split((v.shape[-1], k.shape[-1]), -1)
        scores = between * (q @ k.mT)
        outputs, states = [], []
        for i in range(len(v)):
            u = from_values[i] - from_state[i] @ state.mT
            outputs.append(decay[i] * (q[i] @ state.mT) + scores[i] @ u)
            update = (u * between[i, :, -1, :, None]).mT @ k[i]
            state = rounded(decay[i, :, -1, :, None] * state + update, dtype)
            states.append(state)
        return torch.stack(outputs).transpose(1, 2).flatten(0, 1), torch.stack(states)


def recurrent(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The definition, token by token, in the state's own dtype: [HV, V, K] and [T, ...] inputs, one lane."""
    outputs = []
    for t in range(len(inputs["v"])):
        q, k = (_per_value_head(inputs[name][t].to(state.dtype), state.shape[0], dim=0) for name in "qk")
        state = inputs["log_g"][t].to(state.dtype).exp()[:, None, None] * state
        recalled = (state @ k[..., None]).squeeze(-1)
        u = inputs["beta"][t].to(state.dtype)[:, None] * (inputs["v"][t].to(state.dtype) - recalled)
        state = state + u[..., None] * k[:, None, :]
        outputs.append((state @ q[..., None]).squeeze(-1))
    return torch.stack(outputs) if outputs else state.new_zeros(0, *state.shape[:2]), state


def _decays(log_g: Tensor) -> tuple[Tensor, Tensor]:
    """[N, L, HV] -> the whole decay [N, HV], and each place's decay since it was written [N, L, HV].

    Only sums of numbers of one sign: a difference of cumulative sums would lose the small ones.
    """
    after = log_g.flip(1).cumsum(1).flip(1)  # from each place to the end, itself included
    return after[:, 0], torch.cat((after[:, 1:], torch.zeros_like(after[:, :1])), 1)


def _pairwise_decay(log_g: Tensor) -> Tensor:
    """[n, HV, CHUNK] -> [n, HV, i, j]: exp of the sum over (j, i], zero for j > i."""
    size = log_g.shape[-1]
    steps = torch.ones(size, size, dtype=torch.bool, device=log_g.device).tril(-1)
    sums = torch.where(steps, log_g[..., None], 0.0).cumsum(-2)
    return torch.where(steps | torch.eye(size, dtype=torch.bool, device=log_g.device), sums.exp(), 0.0)


def _sum_entries(weights: Tensor, values: Tensor) -> Tensor:
    """[N, HV, L] x [N, HV, L, V] -> [N, HV, V]"""
    return (weights[:, :, None] @ values).squeeze(2)


def _per_value_head(x: Tensor, heads: int, dim: int = 1) -> Tensor:
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim)
