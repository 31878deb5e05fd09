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
        heads, tokens = state.shape[1], at.shape[1]
        total, distance = decays(torch.where(visible[..., None], entries["log_g"][:, None], 0.0))
        decay = total.exp().transpose(1, 2)[..., None]  # [N, HV, T, 1]
        weights = distance.exp().permute(0, 3, 1, 2)  # [N, HV, T, L]
        probes = torch.cat((inputs["k"].float(), inputs["q"].float()), 1).transpose(1, 2)  # [N, H, 2 T, K]
        dots = per_head(probes @ entries["k"].float().permute(0, 2, 3, 1), heads)
        k_dots, q_dots = (torch.where(visible[:, None], weights * part, 0.0) for part in dots.chunk(2, 2))
        k_state, q_state = (per_head(probes, heads) @ state.mT).chunk(2, 2)  # [N, HV, T, V]

        values = entries["u"].transpose(1, 2)  # [N, HV, L, V], zero at these tokens until they are known
        beta = inputs["beta"].float().transpose(1, 2)[..., None]
        u = beta * (inputs["v"].float().transpose(1, 2) - decay * k_state - k_dots @ values)
        exists = visible.gather(2, at[..., None]).transpose(1, 2)[..., None]  # [N, 1, T, 1]
        u = torch.where(exists, u, 0.0)
        if tokens > 1:  # each has also to recall those before it in the window
            among = k_dots.gather(3, at[:, None, None].expand(-1, heads, tokens, -1))
            u = torch.linalg.solve_triangular(beta * among, u, upper=False, unitriangular=True)
        lane, token = exists[:, 0, :, 0].nonzero(as_tuple=True)
        entries["u"][lane, at[lane, token]] = u.transpose(1, 2)[lane, token]
        return (decay * q_state + q_dots @ values).transpose(1, 2)

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
