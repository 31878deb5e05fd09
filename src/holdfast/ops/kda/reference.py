"""Delta rule with a gate for every channel of a key (2025), in plain torch. H heads.

    u_t = beta_t (v_t - S_{t-1}^T (g_t * k_t))      S_t = diag(g_t) S_{t-1} + k_t u_t^T      o_t = S_t^T q_t

state    [N, H, V, K]
inputs   q, k, log_g [.., H, K]   v [.., H, V]   beta [.., H]
entries  k [.., H, K] as rounded by the caller   u [.., H, V]   log_g [.., H, K]: the token's own

The decay stands inside the dot product of two keys, and is not a product of one factor for each of them: that
factor would be an exponential of a positive number, which overflows at ordinary gates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import CHUNK
from ..journal import Entries, Inputs
from ..linear_attention import decays, recall
from ..places import States
from ..rounding import rounded

AXES = ("head", "value", "key")
WINDOW = 16
"""Tokens of a chunk whose dots are computed pair by pair. Those before them are in the state."""


@dataclass(frozen=True)
class KDA:
    """The recurrence for `ops.journal`."""

    axes: tuple[int, ...] = (0, 1, 2, 3)

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        tokens, log_g = sees.shape[-1], inputs["log_g"]
        k, q, v = (inputs[name].float().transpose(1, 2) for name in "kqv")  # [N, H, T, K or V]
        beta = inputs["beta"].transpose(1, 2)[..., None]

        decay, among = _window_decays(log_g, sees)  # [N, H, T, K], [N, H, T, T, K]
        probes = torch.cat(
            (k * decay, q * decay), 2
        )  # [N, H, 2 T, K], as they meet what was before the window
        total, keys = _weighted(held)
        recalled = recall(probes * total, state) + (probes @ keys.mT) @ held["u"].transpose(1, 2)
        k_recalls, q_recalls = recalled.split(tokens, 2)

        u = beta * (v - k_recalls)
        decayed = among * k[:, :, None]  # [N, H, t, s, K]: keys as t meets them
        if tokens > 1:  # each has also to recall those before it in the window
            k_dots = (k[..., None, :] * decayed).sum(-1)
            u = torch.linalg.solve_triangular(beta * k_dots, u, upper=False, unitriangular=True)
        out = q_recalls + (q[..., None, :] * decayed).sum(-1) @ u
        return out.transpose(1, 2), {"k": inputs["k"], "u": u.transpose(1, 2), "log_g": log_g}

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        total, keys = _weighted(entries)
        return total * state + entries["u"].permute(0, 2, 3, 1) @ keys

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        outputs, states = [], []
        chain = torch.ones(WINDOW, WINDOW, dtype=torch.bool, device=state.device).tril()
        none = {
            name: inputs[like][None, :0].float() for name, like in (("k", "k"), ("u", "v"), ("log_g", "k"))
        }
        for first in range(0, len(inputs["v"]), WINDOW):
            window = {name: x[None, first : first + WINDOW] for name, x in inputs.items()}
            result, fresh = self.attend(state[None], none, window, chain)
            state = self.fold(state[None], fresh)[0]
            outputs.append(result[0])
            if (first + WINDOW) % CHUNK == 0:
                state = rounded(state, dtype)
                states.append(state)
        return torch.cat(outputs), torch.stack(states)


def _weighted(entries: Entries) -> tuple[Tensor, Tensor]:
    """The decay of all entries together [N, H, 1, K], and each one's key as it stands after them [N, H, L, K]."""
    heads = entries["log_g"].shape[2:]
    total, since = (
        decay.unflatten(-1, heads).transpose(1, 2) for decay in decays(entries["log_g"].flatten(2))
    )
    return total, since * entries["k"].float().transpose(1, 2)


def _window_decays(log_g: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
    """Of tokens [N, T, H, K] that see one another so: each one's decay since the window began [N, H, T, K], its own
    included, and from token s to t [N, H, t, s, K], zero where t does not see s."""
    sees = sees.expand(len(log_g), -1, -1)[..., None]
    total, between = decays(torch.where(sees, log_g.flatten(2)[:, None], 0.0))
    apart = [
        x.unflatten(-1, log_g.shape[2:]).movedim(-2, 1) for x in (total, torch.where(sees, between, 0.0))
    ]
    return apart[0][..., 0, :], apart[1]


def recurrent(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The definition, token by token, in the state's own dtype: [H, V, K] and [T, ...] inputs, one lane."""
    given = {name: x.to(state.dtype) for name, x in inputs.items()}
    outputs = []
    for t in range(len(given["v"])):
        state = given["log_g"][t].exp()[:, None] * state
        recalled = (state @ given["k"][t][..., None]).squeeze(-1)
        u = given["beta"][t][:, None] * (given["v"][t] - recalled)
        state = state + u[..., None] * given["k"][t][:, None]
        outputs.append((state @ given["q"][t][..., None]).squeeze(-1))
    return torch.stack(outputs) if outputs else state.new_zeros(0, *state.shape[:2]), state
