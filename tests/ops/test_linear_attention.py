"""What the recurrences share: decays that are never denormal."""

from __future__ import annotations

import pytest
import torch

from holdfast.ops.linear_attention import NOTHING, decay_of, decays, pairwise_decay, window_decays

from .steps import seeded


def test_a_decay_is_its_exponential_or_nothing() -> None:
    log_decay = -torch.rand(1000, generator=seeded(1)) * 120
    decay, expected = decay_of(log_decay), log_decay.double().exp()
    kept = expected > 1.001 * NOTHING
    torch.testing.assert_close(decay[kept].double(), expected[kept], rtol=1e-5, atol=0)
    assert not decay[expected < 0.999 * NOTHING].any()
    assert decay_of(torch.tensor([0.0, torch.nan, -torch.inf])).nan_to_num(2.0).tolist() == [1.0, 2.0, 0.0]


@pytest.mark.parametrize("length", [1, 16])
def test_no_decay_is_denormal(length: int) -> None:
    """Some of these would be: a product with such operands takes many times as long."""
    log_decay = -torch.rand(64, length, 4, generator=seeded(2)) * 100 / length**0.5
    sees = torch.ones(length, length, dtype=torch.bool).tril()
    made = (*decays(log_decay), *window_decays(log_decay, sees), pairwise_decay(log_decay.mT))
    for decay in made:
        assert not ((decay > 0) & (decay < NOTHING)).any()
