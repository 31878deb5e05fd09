"""State space duality (Dao and Gu, 2024), in plain torch. H heads in G groups; head j reads group j * G // H.

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t

state    [N, H, P, S]
inputs   x [.., H, P]   b, c [.., G, S]   dt, log_decay = dt A [.., H]
entries  x [.., H, P] and b [.., G, S] as rounded by the caller   dt, log_decay [.., H]: the token's own
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

AXES = ("head", "channel", "state")


@dataclass(frozen=True)
class SSD:
    """The recurrence for `ops.journal`. A token's entry does not depend on the state it meets."""

    axes: tuple[int, ...] = (0, 1, 2, 3)

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        heads = inputs["x"].shape[2]
        b, c = (inputs[name].float().transpose(1, 2) for name in "bc")  # [N, G, T, S]
        total, weights = (decay.transpose(1, 2)[:, :, None] for decay in decays(held["log_decay"]))
        decay, among = window_decays(inputs["log_decay"], sees)  # [N, H, T, 1], [N, H, T, T]
        held_b = held["b"].float().transpose(1, 2).contiguous()  # [N, G, L, S], as the pool gives them
        dots = per_head(c @ held_b.mT, heads)  # [N, H, T, L]
        recalled = total * recall(per_head(c, heads), state) + (weights * dots) @ _written(held)
        own = (among * per_head(c @ b.mT, heads)) @ _written(inputs)
        fresh = {name: inputs[name] for name in ("x", "b", "dt", "log_decay")}
        return (decay * recalled + own).transpose(1, 2), fresh

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        total, weights = decays(entries["log_decay"])
        weighted = _written(entries) * weights.transpose(1, 2)[..., None]  # [N, H, L, P]
        b = per_head(entries["b"].float().transpose(1, 2), state.shape[1])
        return total.transpose(1, 2)[..., None] * state + weighted.mT @ b

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        heads = state.shape[0]
        blocks = {name: x.unflatten(0, (-1, CHUNK)) for name, x in inputs.items()}
        written = _written(blocks)  # [n, H, CHUNK, P]
        log_decay = blocks["log_decay"].transpose(1, 2)
        b, c = (blocks[name].float().transpose(1, 2) for name in "bc")  # [n, G, CHUNK, S]
        decay = decay_of(log_decay.cumsum(-1))[..., None]  # from the block's start, the token's own included
        between = pairwise_decay(log_decay)  # [n, H, CHUNK, CHUNK]: from j to i, zero above the diagonal
        inside = (between * per_head(c @ b.mT, heads)) @ written
        added = (written * between[:, :, -1, :, None]).mT @ per_head(b, heads)  # [n, H, P, S]
        c = per_head(c, heads)
        outputs, states = [], []
        for i in range(len(added)):
            outputs.append(decay[i] * (c[i] @ state.mT) + inside[i])
            state = rounded(decay[i, :, -1, :, None] * state + added[i], dtype)
            states.append(state)
        return torch.stack(outputs).transpose(1, 2).flatten(0, 1), torch.stack(states)


def recurrent(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The definition, token by token, in the state's own dtype: [H, P, S] and [T, ...] inputs, one lane."""
    given = {name: x.to(state.dtype) for name, x in inputs.items()}
    outputs = []
    for t in range(len(given["x"])):
        b, c = (per_head(given[name][t], len(state), dim=0)[:, None] for name in "bc")  # [H, 1, S]
        written = (given["dt"][t][:, None] * given["x"][t])[..., None]
        state = given["log_decay"][t].exp()[:, None, None] * state + written * b
        outputs.append((state * c).sum(-1))
    return torch.stack(outputs) if outputs else state.new_zeros(0, *state.shape[:2]), state


def _written(entries: Inputs) -> Tensor:
    """[N, H, L, P]: what each token writes along its B."""
    return (entries["dt"][..., None] * entries["x"].float()).transpose(1, 2)
