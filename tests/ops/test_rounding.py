"""States as pools keep them: what is read can be stored again, and how far it is from what was stored."""

from __future__ import annotations

import pytest
import torch

from holdfast.memory.spec import TensorSpec
from holdfast.ops.rounding import GREATEST, narrowed, rounded, widened

from .steps import seeded


def states(seed: int) -> torch.Tensor:
    """Rows of very different sizes, one of zeros, one with a single number."""
    x = torch.randn(40, 3, 128, generator=seeded(seed))
    x *= 10.0 ** torch.linspace(-30, 30, 40)[:, None, None]
    x[3, 1] = 0.0
    x[5, 2, 1:] = 0.0
    return x


@pytest.mark.parametrize("dtype", [*GREATEST, torch.bfloat16, torch.float32], ids=str)
def test_what_was_read_is_stored_again_without_a_change(dtype: torch.dtype) -> None:
    for seed in range(20):
        once = rounded(states(seed), dtype)
        assert torch.equal(rounded(once, dtype), once)


@pytest.mark.parametrize(
    ("dtype", "apart"), [(torch.int8, 0.502 / 127), (torch.float8_e4m3fn, 0.0358)], ids=str
)
def test_a_number_is_rounded_to_nearest(dtype: torch.dtype, apart: float) -> None:
    x = states(1)
    off = (rounded(x, dtype) - x).abs() / x.abs().amax(-1, keepdim=True).clamp(min=1e-38)
    assert apart / 2 < float(off.max()) <= apart


@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_scales_are_shared_along_one_axis(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 4, 5, generator=seeded(2))
    numbers, scale = narrowed(x, dtype, axis=2)
    assert scale.shape == (2, 3, 1, 5)
    assert torch.equal(widened(numbers, scale), rounded(x.mT, dtype).mT)


@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_what_is_not_a_number_stays_so(dtype: torch.dtype) -> None:
    x = torch.ones(2, 4)
    x[1, 2] = torch.nan
    assert rounded(x, dtype).isnan().tolist() == [[False] * 4, [True] * 4]


def test_scales_count_in_the_size() -> None:
    sizes = {"head": 2, "value": 4, "key": 16}
    spec = TensorSpec(sizes, torch.int8, order=("head", "key", "value"), scaled="key")
    assert spec.scale is not None and spec.scale.shape == (2, 1, 4)
    assert spec.nbytes == 2 * 4 * 16 + 2 * 4 * 2
    with pytest.raises(ValueError, match="needs scales"):
        TensorSpec(sizes, torch.int8)
