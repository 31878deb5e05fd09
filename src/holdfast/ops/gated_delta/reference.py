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
from ..journal import Entries, Inputs
from ..linear_attention import decay_of, decays, pairwise_decay, per_head, recall, window_decays
from ..places import States
from ..rounding import rounded

AXES = ("head", "value", "key")


@dataclass(frozen=True)
class GatedDelta:
    """The recurrence for `ops.journal`."""

    axes: tuple[int, ...] = (0, 1, 2, 3)

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        heads, tokens = inputs["v"].shape[2], sees.shape[-1]
        log_g, beta = inputs["log_g"], inputs["beta"].transpose(1, 2)[..., None]
        k, q = (inputs[name].float().transpose(1, 2) for name in "kq")  # [N, H, T, K]
        probes = torch.cat((k, q), 2)  # [N, H, 2 T, K]

        total, weights = (x.transpose(1, 2).unsqueeze(2) for x in decays(held["log_g"]))  # [N, HV, 1, 1 or L]
        decay, among = window_decays(log_g, sees)
        keys = held["k"].float().transpose(1, 2).contiguous()  # [N, H, L, K], as the pool gives them
        dots = per_head(probes @ keys.mT, heads)
        recalled = total * recall(per_head(probes, heads), state) + (weights * dots) @ held["u"].transpose(
            1, 2
        )
        k_recalls, q_recalls = recalled.chunk(2, 2)  # [N, HV, T, V], as if the window had not decayed it
        k_dots, q_dots = per_head(probes @ k.mT, heads).chunk(2, 2)

        u = beta * (inputs["v"].float().transpose(1, 2) - decay * k_recalls)
        if tokens > 1:  # each has also to recall those before it in the window
            u = torch.linalg.solve_triangular(beta * (among * k_dots), u, upper=False, unitriangular=True)
        own = (among * q_dots) @ u if tokens > 1 else q_dots * u
        out = decay * q_recalls + own
        return out.transpose(1, 2), {"k": inputs["k"], "u": u.transpose(1, 2), "log_g": log_g}

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        total, weights = decays(entries["log_g"])
        weighted = (entries["u"] * weights[..., None]).permute(0, 2, 3, 1)  # [N, HV, V, L]
        keys = per_head(entries["k"].float().transpose(1, 2), state.shape[1])
        return total.transpose(1, 2)[..., None] * state + weighted @ keys

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        heads = state.shape[0]
        blocks = {name: x.float().unflatten(0, (-1, CHUNK)).transpose(1, 2) for name, x in inputs.items()}
        q, k = (per_head(blocks[name], heads) for name in "qk")  # [n, HV, CHUNK, K]
        v, log_g, beta = blocks["v"], blocks["log_g"], blocks["beta"][..., None]
        decay = decay_of(log_g.cumsum(-1))[..., None]  # from the block's start, the token's own included
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
