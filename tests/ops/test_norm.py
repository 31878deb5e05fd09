"""Norms, against the definition in float64 and the modules that transformers uses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.lfm2.modeling_lfm2 import Lfm2RMSNorm
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5

from holdfast.ops.norm.reference import gated_rms_norm, l2_norm, rms_norm

from .steps import same_bits, seeded

shapes = pytest.mark.parametrize("shape", [(5, 16), (3, 4, 8), (1, 1), (0, 7)], ids=str)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (3 * torch.randn(shape, generator=seeded(seed))).to(dtype)


def rms(x: Tensor, eps: float) -> Tensor:
    return x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()


@shapes
def test_rms_norms_are_their_definition(shape: tuple[int, ...]) -> None:
    x, gate, weight = random(shape, 1), random(shape, 2), random(shape[-1:], 3)
    normed = rms(x, 1e-5)
    expected = {
        "plain": (rms_norm(x, weight, 1e-5), normed * weight),
        "around zero": (rms_norm(x, weight, 1e-5, zero_centred=True), normed * (1 + weight.double())),
        "gated": (gated_rms_norm(x, gate, weight, 1e-5), normed * weight * F.silu(gate.double())),
        "l2": (l2_norm(x), x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()),
    }
    for name, (got, wanted) in expected.items():
        assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-6), name


@shapes
@dtypes
def test_rms_norms_are_those_of_transformers(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Bit for bit, rounding of the intermediate values included."""
    x, gate, weight = random(shape, 4, dtype), random(shape, 5, dtype), random(shape[-1:], 6, dtype)
    plain, around_zero = Lfm2RMSNorm(shape[-1], eps=1e-5), qwen3_5.Qwen3_5RMSNorm(shape[-1], eps=1e-5)
    gated = qwen3_5.Qwen3_5RMSNormGated(shape[-1], eps=1e-5)
    for module in (plain, around_zero, gated):
        module.weight.data = weight.clone()
    with torch.no_grad():
        assert same_bits(rms_norm(x, weight, 1e-5), plain(x))
        assert same_bits(rms_norm(x, weight, 1e-5, zero_centred=True), around_zero(x))
        assert same_bits(gated_rms_norm(x, gate, weight, 1e-5), gated(x, gate))


@shapes
def test_l2_norm_is_that_of_transformers(shape: tuple[int, ...]) -> None:
    x = random(shape, 7)
    torch.testing.assert_close(l2_norm(x), qwen3_5.l2norm(x), rtol=1e-6, atol=1e-7)  # type: ignore[arg-type]


def test_l2_norm_is_float32_whatever_comes_in() -> None:
    assert l2_norm(random((2, 8), 8, torch.bfloat16)).dtype == torch.float32


def test_a_row_of_zeros_stays_zero() -> None:
    zeros, weight = torch.zeros(2, 8), torch.ones(8)
    for normed in (rms_norm(zeros, weight, 1e-6), l2_norm(zeros), gated_rms_norm(zeros, zeros, weight, 1e-6)):
        assert same_bits(normed, zeros)
