"""Random weights of the right shapes, to try a model's speed and size without its files."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .loader import materialise

PERIOD = 1_048_573
"""A prime, so that no two rows of a weight are alike."""
DECAYS = (1.0, 16.0)
TIME_STEPS = (0.001, 0.1)
"""What recurrent models begin their training with: states last from a few tokens to hundreds."""


class Noise:
    """Uniform values: a long block of them over and over, which is quicker than drawing each."""

    def __init__(self, device: torch.device, seed: int) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        block = torch.empty(PERIOD, device=device).uniform_(-1.0, 1.0, generator=generator)
        self._twice = torch.cat((block, block))
        self._at = 0

    def fill(self, target: Tensor, least: float, most: float) -> None:
        for part in target.view(-1).split(PERIOD):
            noise = self._twice[self._at : self._at + len(part)]
            part.copy_(noise).mul_((most - least) / 2).add_((most + least) / 2)
            self._at = (self._at + len(part)) % PERIOD


@torch.no_grad()
def fill_with_noise(model: nn.Module, device: torch.device, seed: int) -> None:
    """Give every weight on the meta device memory on `device`, and values with which activations stay finite.

    A seed gives the same weights again on the same kind of device.
    """
    noise = Noise(device, seed)
    for module in model.modules():
        norm = 0.0 if getattr(module, "zero_centred", False) else 1.0
        for name, weight in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if weight.is_meta:
                materialise(weight, device)
                _fill(weight, name, noise, norm)


def _fill(weight: Tensor, name: str, noise: Noise, norm: float) -> None:
    if not weight.is_floating_point():
        weight.zero_()
    elif name == "a_log":
        noise.fill(weight, *map(math.log, DECAYS))
    elif weight.ndim > 1:
        spread = math.sqrt(3.0 / weight.shape[-1])  # what it multiplies keeps its size
        noise.fill(weight, -spread, spread)
    elif name == "dt_bias":
        noise.fill(weight, *map(math.log, TIME_STEPS))
        weight.exp_().expm1_().log_()  # softplus takes this back
    else:
        weight.fill_(0.0 if name.endswith("bias") else norm)
