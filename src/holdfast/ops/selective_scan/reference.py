"""Selective scan (Gu and Dao, 2023), in plain torch. Every channel has a small state; all share B and C.

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T        y_t = h_t C_t

state    [N, D, S]
inputs   x, dt [.., D]   b, c [.., S]
entries  x [.., D] and b [.., S] as rounded by the caller   dt [.., D]

What a token wrote decays by exp(A d), d being the sum of the time steps since. A sum of those is taken before the
exponential: the decays of weak steps are so near to one that float32 rounds them all the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import CHUNK
from ..journal import Entries, Inputs, gathered
from ..linear_attention import distances
from ..places import States
from ..rounding import rounded

AXES = ("channel", "state")


@dataclass(frozen=True)
class SelectiveScan:
    """The recurrence for `ops.journal`. A token's entry does not depend on the state it meets.

    a  [D, S], below zero
    """

    a: Tensor
    axes: tuple[int, ...] = (0, 1, 2)

    def attend(self, state: States, held: Entries, inputs: Inputs, sees: Tensor) -> tuple[Tensor, Entries]:
        """Who sees a token must see all that it sees, as in a tree: then each continues from one other."""
        state = gathered(state)
        lanes, tokens = torch.arange(len(state), device=state.device), sees.shape[-1]
        number = torch.arange(1, tokens + 1, device=state.device)
        last_seen = (sees.tril(-1) * number).amax(-1).expand(len(state), -1)  # [N, T]; 0: none of the window
        states = state.new_empty(len(state), tokens + 1, *state.shape[1:])
        states[:, 0] = self.fold(state, held)
        for t in range(tokens):
            token = {name: x[:, t] for name, x in inputs.items()}
            states[:, t + 1] = self._decay(token["dt"]) * states[lanes, last_seen[:, t]] + _written(token)
        out = (states[:, 1:] @ inputs["c"].float()[..., None]).squeeze(-1)
        return out, {name: inputs[name] for name in ("x", "b", "dt")}

    def fold(self, state: Tensor, entries: Entries) -> Tensor:
        total, since = distances(entries["dt"])
        state = self._decay(total[:, 0]) * state
        for place in range(since.shape[1]):  # by itself: all at once would take as many states
            written = _written({name: entry[:, place] for name, entry in entries.items()})
            state = torch.addcmul(state, self._decay(since[:, place]), written)
        return state

    def chunk(self, state: Tensor, inputs: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        outputs, states = [], []
        for first in range(0, len(inputs["x"]), CHUNK):
            block = {name: x[first : first + CHUNK] for name, x in inputs.items()}
            after, span = _written(block), block["dt"]  # [CHUNK, D, S], [CHUNK, D]
            after[0] += self._decay(span[0]) * state
            reach = 1  # tokens that each has absorbed, itself included; `span` is their time
            while reach < CHUNK:
                after[reach:] += self._decay(span[reach:]) * after[:-reach]
                span = torch.cat((span[:reach], span[reach:] + span[:-reach]))
                reach *= 2
            outputs.append((after @ block["c"].float()[..., None]).squeeze(-1))
            state = rounded(after[-1], dtype)
            states.append(state)
        return torch.cat(outputs), torch.stack(states)

    def _decay(self, time: Tensor) -> Tensor:
        """[.., D] -> [.., D, S]"""
        return (time[..., None] * self.a).exp()


def _written(entries: Inputs) -> Tensor:
    """[.., D, S]: what each token adds."""
    return (entries["dt"] * entries["x"].float())[..., None] * entries["b"].float()[..., None, :]


def recurrent(state: Tensor, inputs: Inputs, a: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, token by token, in the state's own dtype: [D, S] and [T, ...] inputs, one lane."""
    given = {name: x.to(state.dtype) for name, x in inputs.items()}
    outputs = []
    for t in range(len(given["x"])):
        dt = given["dt"][t][:, None]
        state = (dt * a.to(state.dtype)).exp() * state + dt * given["x"][t][:, None] * given["b"][t]
        outputs.append((state * given["c"][t]).sum(-1))
    return torch.stack(outputs) if outputs else state.new_zeros(0, len(state)), state
