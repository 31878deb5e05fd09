"""Norms and gates in Triton against the reference, on views as layers pass them."""

from __future__ import annotations

import pytest
import torch

from holdfast.ops.backend import Ops
from holdfast.ops.norm import reference

from .steps import seeded

pytest.importorskip("triton")
from holdfast.ops.gating import triton as gating
from holdfast.ops.norm import triton as norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.gpu if DEVICE.type == "cuda" else []
EPS = 1e-6


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed)).to(DEVICE)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 40), (3, 7, 12), (1, 1, 2048), (0, 8)], ids=str)
@pytest.mark.parametrize("zero_centred", [False, True])
def test_rms_norm(shape: tuple[int, ...], zero_centred: bool) -> None:
    x, weight = noise(*shape, seed=1), noise(shape[-1], seed=2)
    same, out = norm.rms_norm(x, weight, EPS, zero_centred=zero_centred)
    assert same is x
    close(out, reference.rms_norm(x, weight, EPS, zero_centred=zero_centred))


def test_rms_norm_of_views() -> None:
    """Heads of a wider projection."""
    wide, weight = noise(4, 100, seed=1), noise(12, seed=2)
    x = wide[:, 10:46].unflatten(-1, (3, 12))
    close(norm.rms_norm(x, weight, EPS)[1], reference.rms_norm(x, weight, EPS))


def apart(x: torch.Tensor) -> torch.Tensor:
    """The same, with room between heads, as queries have that lie beside their gates."""
    return torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]]


def test_norms_of_heads_that_lie_apart() -> None:
    x, other, weight = noise(4, 3, 12, seed=1), noise(4, 3, 12, seed=3), noise(12, seed=2)
    close(norm.rms_norm(apart(x), weight, EPS)[1], reference.rms_norm(x, weight, EPS))
    summed, out = norm.rms_norm(x, weight, EPS, added=apart(other))
    close(summed, x + other)
    close(out, reference.rms_norm(x + other, weight, EPS))
    for inputs in ((apart(x), other), (x, apart(other))):
        close(norm.gated_rms_norm(*inputs, weight, EPS), reference.gated_rms_norm(x, other, weight, EPS))


def test_rms_norm_of_a_sum() -> None:
    x, added, weight = noise(6, 40, seed=1), noise(6, 50, seed=3)[:, :40], noise(40, seed=2)
    before = x.clone()
    summed, out = norm.rms_norm(x, weight, EPS, added=added)
    close(summed, x + added)
    close(out, reference.rms_norm(x + added, weight, EPS))
    assert torch.equal(x, before)


def test_a_sum_may_have_its_place_among_others() -> None:
    x, added, weight = noise(6, 40, seed=1), noise(6, 40, seed=3), noise(40, seed=2)
    places = torch.full((6, 3, 40), torch.nan, device=x.device)
    summed, out = norm.rms_norm(x, weight, EPS, added=added, summed=places[:, 1])
    assert summed.data_ptr() == places[:, 1].data_ptr() and places[:, 0::2].isnan().all()
    close(places[:, 1], x + added)
    close(out, reference.rms_norm(x + added, weight, EPS))
    norm.rms_norm(x, weight, EPS, out=places[:, 2])
    close(places[:, 2], reference.rms_norm(x, weight, EPS))
    assert places[:, 0].isnan().all()


def test_a_wide_residual_stream_keeps_its_dtype() -> None:
    x, added, weight = noise(3, 16, seed=1), noise(3, 16, seed=3).half(), noise(16, seed=2).half()
    summed, out = norm.rms_norm(x, weight, EPS, added=added)
    assert summed.dtype == torch.float32 and out.dtype == torch.float16
    torch.testing.assert_close(summed, x + added)
    torch.testing.assert_close(out, reference.rms_norm(x + added, weight, EPS), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("shape", [(5, 40), (3, 7, 12)], ids=str)
def test_gated_rms_norm(shape: tuple[int, ...], gate_first: bool) -> None:
    x, weight = noise(*shape, seed=1), noise(shape[-1], seed=2)
    size = x[0].numel()
    gate = noise(shape[0], size + 9, seed=3)[:, 4 : 4 + size].unflatten(-1, shape[1:])
    got = norm.gated_rms_norm(x, gate, weight, EPS, gate_first=gate_first)
    close(got, reference.gated_rms_norm(x, gate, weight, EPS, gate_first=gate_first))


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_gates(tokens: int) -> None:
    ops = Ops()
    wide = noise(tokens, 90, seed=1)
    gate, x = wide[:, 3:43], wide[:, 50:90]
    close(gating.gate_mul(gate, x, silu=True), ops.silu_mul(gate, x))
    heads = wide[:, :80].unflatten(-1, (4, 20))  # a head's query and gate, side by side
    mixed = noise(tokens, 4, 10, seed=2)
    close(gating.gate_mul(heads[..., 10:], mixed, silu=False), ops.sigmoid_mul(heads[..., 10:], mixed))
