"""The negative control: damage one state of one layer after the prompt, and see whether log-probabilities move.

If some damage did not show, a test on that model would pass an engine that does the same damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .oracle import Oracle

LEAST_CHANGE = 1e-2
"""Any damage moves some log-probability by at least this."""
KINDS = ("zero", "swap", "delay")


@dataclass(frozen=True)
class Fault:
    """`kind` done to one state of one layer: zeroed, another request's, or as it was one token earlier."""

    layer: int
    state: str
    kind: str


def damaged_logprobs(
    oracle: Oracle, prompt: Sequence[int], other: Sequence[int], steps: int = 4
) -> dict[Fault | None, Tensor]:
    """Log-probabilities [steps, vocabulary] of decoding on with each fault, and with None, fed the oracle's tokens.

    One batch holds the prompt once per fault. Row r of `logprobs` follows the oracle's token r.
    """
    assert len(prompt) == len(other) > 1, "swapping needs prompts of one length, delaying two tokens"
    swapped, delayed = (_absorbed(oracle, tokens, 1) for tokens in (other, prompt[:-1]))
    faults = [
        Fault(layer, state, kind)
        for layer in range(oracle.num_layers)
        for state in _states(swapped, layer)
        for kind in KINDS
    ]
    cache = _absorbed(oracle, prompt, 1 + len(faults))
    for row, fault in enumerate(faults, 1):
        states = (_states(c, fault.layer)[fault.state] for c in (cache, swapped, delayed))
        _damage(fault, row, *states)
    tokens = torch.tensor(oracle.run(prompt, steps).tokens).expand(1 + len(faults), -1)
    rows = torch.cat([oracle.step(tokens[:, i : i + 1], cache) for i in range(steps)], dim=1)
    return dict(zip([None, *faults], rows, strict=True))


def changes(logprobs: dict[Fault | None, Tensor]) -> dict[Fault, float]:
    """By how much each fault moves the log-probability that it moves most."""
    intact = logprobs[None]
    return {
        fault: float((rows - intact).abs().max()) for fault, rows in logprobs.items() if fault is not None
    }


def assert_state_matters(oracle: Oracle, prompt: Sequence[int], other: Sequence[int], steps: int = 4) -> None:
    moved = changes(damaged_logprobs(oracle, prompt, other, steps))
    unseen = {fault: change for fault, change in moved.items() if not change >= LEAST_CHANGE}
    assert not unseen, f"damage that would not be seen (below {LEAST_CHANGE}): {unseen}"


def _absorbed(oracle: Oracle, tokens: Sequence[int], batch: int) -> Any:
    """The cache after `tokens`, `batch` times."""
    cache = oracle.new_cache()
    oracle.step(torch.tensor(tuple(tokens)).expand(batch, -1), cache)
    return cache


def _states(cache: Any, number: int) -> dict[str, Tensor]:
    """A layer's states by name, as the cache holds them; the first axis is the batch."""
    fixed_decay = getattr(cache, "linear_cache", ())  # a list with [] for the other layers
    if number < len(fixed_decay) and len(fixed_decay[number]):
        return {"temporal": fixed_decay[number]}
    layer = cache.layers[number]
    named = {name: getattr(layer, name, None) for name in ("keys", "values")}
    if hasattr(layer, "conv_states"):
        named |= {"conv": layer.conv_states[0], "temporal": layer.recurrent_states[0]}
    return {name: state for name, state in named.items() if state is not None}


def _damage(fault: Fault, row: int, state: Tensor, swapped: Tensor, delayed: Tensor) -> None:
    if fault.kind == "zero":
        state[row] = 0
    elif fault.kind == "swap":
        state[row] = swapped[0]
    elif fault.state in ("keys", "values"):  # every position holds what belongs to the one before
        state[row] = state[row].roll(1, dims=-2)
    else:
        state[row] = delayed[0]
