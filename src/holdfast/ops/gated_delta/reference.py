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
from ..linear_attention import decays, pairwise_decay, per_head

AXES = ("head", "value", "key")


@dataclass(frozen=True)
class GatedDelta:
    """The recurrence for `ops.journal`."""

    axes: tuple[int, ...] = (0, 1, 2, 3)

    def entries(self, inputs: Inputs) -> Entries:
        return {"k": inputs["k"], "log_g": inputs["log_g"]}  # u is known when the state has been seen

    def attend(self, state: Tensor, entries: Entries, inputs: Inputs, at: Tensor, visible: Tensor) -> Tensor:
        lanes, tokens = at.shape
        heads = state.shape[1]
        lane = torch.arange(lanes, device=at.device)
        keys = entries["k"].float().transpose(1, 2)  # [N, H, L, K]
        probes = torch.stack((inputs["k"].float(), inputs["q"].float()), -1)  # [N, T, H, K, 2]
        against_state = state @ per_head(probes.permute(0, 2, 3, 1, 4).flatten(3), heads)
        against_state = against_state.unflatten(-1, (tokens, 2))  # [N, HV, V, T, 2]
        out = state.new_empty(lanes, tokens, heads, state.shape[2])
        for t in range(tokens):
            log_g = entries["log_g"]
            if tokens > 1:  # else nothing but this token follows the journal
                log_g = torch.where(visible[:, t, :, None], log_g, 0.0)
            total, distance = decays(log_g)
            weights = distance.exp().transpose(1, 2)[..., None]  # [N, HV, L, 1]
            if tokens > 1:
                weights = torch.where(visible[:, t, None, :, None], weights, 0.0)
            dots = weights * per_head(keys @ probes[:, t], heads)  # [N, HV, L, 2]
            values = entries["u"].transpose(1, 2)  # [N, HV, L, V], zero at this token until it is known
            decayed = total.exp()[..., None, None] * against_state[..., t, :]  # [N, HV, V, 2]
            recalled = decayed[..., 0] + (dots[..., None, :, 0] @ values)[:, :, 0]
            u = inputs["beta"][:, t, :, None] * (inputs["v"][:, t].float() - recalled)
            u = torch.where(visible[lane, t, at[:, t]][:, None, None], u, 0.0)
            entries["u"][lane, at[:, t]] += u
            out[:, t] = decayed[..., 1] + (dots[..., None, :, 1] @ values)[:, :, 0]
        return out

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        total, distance = decays(entries["log_g"])
        weighted = (entries["u"] * distance.exp()[..., None]).permute(0, 2, 3, 1)  # [N, HV, V, L]
        keys = per_head(entries["k"].float().transpose(1, 2), state.shape[1])
        return total.exp()[..., None, None] * state + weighted @ keys

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        heads = state.shape[0]
        blocks = {name: x.float().unflatten(0, (-1, CHUNK)).transpose(1, 2) for name, x in inputs.items()}
        q, k = (per_head(blocks[name], heads) for name in "qk")  # [n, HV, CHUNK, K]
        v, log_g, beta = blocks["v"], blocks["log_g"], blocks["beta"][..., None]
        decay = log_g.cumsum(-1).exp()[..., None]  # from the block's start, the token's own included
        between = pairwise_decay(log_g)  # [n, HV, CHUNK, CHUNK]: from j to i, zero above the diagonal
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
        q, k = (per_head(inputs[name][t].to(state.dtype), state.shape[0], dim=0) for name in "qk")
        state = inputs["log_g"][t].to(state.dtype).exp()[:, None, None] * state
        recalled = (state @ k[..., None]).squeeze(-1)
        u = inputs["beta"][t].to(state.dtype)[:, None] * (inputs["v"][t].to(state.dtype) - recalled)
        state = state + u[..., None] * k[:, None, :]
        outputs.append((state @ q[..., None]).squeeze(-1))
    return torch.stack(outputs) if outputs else state.new_zeros(0, *state.shape[:2]), state
