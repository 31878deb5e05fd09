"""What a request's state must be: float64, token by token, with no journal, no slots and no windows."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    key_heads: int = 1
    value_heads: int = 2
    key_dim: int = 4
    value_dim: int = 3
    channels: int = 3
    width: int = 4


@dataclass(frozen=True)
class Token:
    """q, k [H, K]; v [HV, V]; log_g, beta [HV]; x [channels]: the convolution's input"""

    q: Array
    k: Array
    v: Array
    log_g: Array
    beta: Array
    x: Array


def tokens_of(inputs: dict[str, Tensor]) -> list[Token]:
    """{name: [n, ...]} as the operations take them -> n tokens"""
    wide = {name: x.double().numpy() for name, x in inputs.items()}
    return [Token(**{name: x[t] for name, x in wide.items()}) for t in range(len(wide["x"]))]


@dataclass(frozen=True)
class Absorbed:
    """One token's outcome: u is what it added along its key."""

    state: Array
    output: Array
    u: Array


def absorb(state: Array, token: Token) -> Absorbed:
    """state [HV, V, K]; the three lines of the definition."""
    reads = np.arange(len(state)) * len(token.k) // len(state)
    keys, queries = token.k[reads], token.q[reads]
    state = np.exp(token.log_g)[:, None, None] * state
    u = token.beta[:, None] * (token.v - (state * keys[:, None]).sum(-1))
    state = state + u[..., None] * keys[:, None]
    return Absorbed(state, (state * queries[:, None]).sum(-1), u)


def add(state: Array, token: Token, u: Array) -> Array:
    """The state after a token whose u is known."""
    reads = np.arange(len(u)) * len(token.k) // len(u)
    return np.exp(token.log_g)[:, None, None] * state + u[..., None] * token.k[reads][:, None]


def convolve(inputs: Sequence[Array], weight: Array, bias: Array) -> Array:
    """The output at the last of `inputs`; weight [channels, width]."""
    width = weight.shape[1]
    recent = inputs[-width:]
    return bias + sum(x * weight[:, width - len(recent) + j] for j, x in enumerate(recent))


def as_stored(state: Array, dtype: torch.dtype) -> Array:
    """Rounded to a pool's dtype; float32 counts as exact here, its error is what tolerances are for."""
    if dtype == torch.float32:
        return state
    if dtype.itemsize == 1:
        greatest = np.abs(state).max(-1, keepdims=True)
        largest = 127 if dtype == torch.int8 else 448
        scale = torch.from_numpy(greatest / largest).bfloat16().double().numpy()
        numbers = state / np.where(scale == 0, 1, scale)
        to_eighth = torch.from_numpy(numbers).to(dtype).double().numpy()
        return (np.round(numbers) if dtype == torch.int8 else to_eighth) * scale
    return torch.from_numpy(state).to(dtype).double().numpy()


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """From a root down to `node`."""
    above = parents[node]
    return ([] if above < 0 else path_to(above, parents)) + [node]


@dataclass(frozen=True)
class Trial:
    """Tokens that were computed and may yet be rejected. `mixed` is what the convolution gives."""

    tokens: list[Token]
    absorbed: list[Absorbed]
    mixed: list[Array]

    @property
    def outputs(self) -> list[Array]:
        return [done.output for done in self.absorbed]


@dataclass
class History:
    """What one request has absorbed, and its state after each token, states[0] before the first."""

    shape: Shape
    weight: Array
    bias: Array
    dtype: torch.dtype
    tokens: list[Token] = field(default_factory=list)
    states: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.states:
            self.states.append(np.zeros((self.shape.value_heads, self.shape.value_dim, self.shape.key_dim)))

    @property
    def position(self) -> int:
        return len(self.tokens)

    def until(self, position: int) -> History:
        """The same request, as it was at `position`."""
        tokens, states = self.tokens[:position], self.states[: position + 1]
        return History(self.shape, self.weight, self.bias, self.dtype, tokens, states)

    def try_chain(self, tokens: list[Token], rounded_at: Container[int]) -> Trial:
        """Each token follows the one before; at `rounded_at` the state passes through the pool's dtype."""
        state, trial = self.states[-1], Trial(tokens, [], [])
        inputs = [token.x for token in self.tokens[-self.shape.width :]]
        for position, token in enumerate(tokens, self.position + 1):
            done = absorb(state, token)
            state = as_stored(done.state, self.dtype) if position in rounded_at else done.state
            inputs.append(token.x)
            trial.absorbed.append(Absorbed(state, done.output, done.u))
            trial.mixed.append(convolve(inputs, self.weight, self.bias))
        return trial

    def try_tree(self, tokens: list[Token], parents: Sequence[int]) -> Trial:
        """Token i follows its parent, or what is certain where that is -1. Nothing is rounded on the way."""
        trial = Trial(tokens, [], [])
        before = [token.x for token in self.tokens[-self.shape.width :]]
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            state = trial.absorbed[parent].state if parent >= 0 else self.states[-1]
            trial.absorbed.append(absorb(state, token))
            inputs = before + [tokens[n].x for n in path_to(node, parents)]
            trial.mixed.append(convolve(inputs, self.weight, self.bias))
        return trial

    def accept(self, trial: Trial, count: int) -> None:
        self.tokens += trial.tokens[:count]
        self.states += [done.state for done in trial.absorbed[:count]]

    def accept_path(self, trial: Trial, path: Sequence[int], rounded_at: Container[int]) -> None:
        """What a branch added is final; lines are rounded only now, below it."""
        for node in path:
            token = trial.tokens[node]
            state = add(self.states[-1], token, trial.absorbed[node].u)
            self.tokens.append(token)
            self.states.append(as_stored(state, self.dtype) if self.position in rounded_at else state)

    def inputs_before(self, position: int) -> Array:
        """[width - 1, channels]: zero before the first token."""
        padding = [np.zeros(self.shape.channels)] * (self.shape.width - 1)
        inputs = padding + [token.x for token in self.tokens[:position]]
        return np.array(inputs[len(inputs) - (self.shape.width - 1) :])


def rounding_lines(position: int, count: int, grid: int, block: int) -> Iterator[int]:
    """Where a run rounds its state: at every line, but of a whole block on its own grid only at the end."""
    end = position + count
    while position < end:
        whole = position % block == 0 and end - position >= block
        position = position + block if whole else position // grid * grid + grid
        if position <= end:
            yield position
