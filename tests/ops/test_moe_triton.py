"""The Triton kernels of a mixture of experts against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from holdfast.ops.backend import choose
from holdfast.ops.moe import reference
from holdfast.ops.moe.reference import Routing

from .steps import seeded

pytest.importorskip("triton")
from holdfast.ops.moe import triton as twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow
PLAIN = Routing(12, 3)
SIGMOID = Routing(12, 3, score="sigmoid", eps=0.25, scale=2.5)
GROUPED = replace(SIGMOID, groups=4, chosen_groups=2)
ROUTINGS = {
    "softmax": PLAIN,
    "not normalised": replace(PLAIN, normalised=False),
    "sigmoid": SIGMOID,
    "grouped": GROUPED,
    "of many": Routing(256, 8),
    "all": replace(PLAIN, chosen=12),
}


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=seeded(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_a_token_has_the_same_experts(name: str, biased: bool) -> None:
    routing = ROUTINGS[name]
    logits = random(7, routing.experts, seed=1)
    bias = random(routing.experts, seed=2) if biased else None
    wanted = reference.route(logits, bias, routing)
    found = twin.route(logits, bias, routing)
    assert torch.equal(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1], rtol=2e-6, atol=0)


def test_of_equal_experts_the_first_is_chosen_and_nan_chooses_some_that_exist() -> None:
    logits = torch.zeros(2, 12, device=DEVICE)
    logits[1] = torch.nan
    experts, weights = twin.route(logits, None, PLAIN)
    assert experts[0].tolist() == [0, 1, 2] and weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert bool(((experts[1] >= 0) & (experts[1] < 12)).all())


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_pairs_are_sorted_by_expert_and_stay_in_order(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "SORTED_AT_ONCE", 32)
    experts = torch.randint(9, (tokens, 3), generator=seeded(tokens)).to(DEVICE)
    order, begins = twin.sort(experts, 11)
    flat = experts.flatten()
    assert torch.equal(order.long(), flat.argsort(stable=True))
    counts = flat.bincount(minlength=11)
    assert torch.equal(begins.long(), torch.cat((counts.new_zeros(1), counts.cumsum(0))))


def mix(
    tokens: int,
    *,
    count: int = 6,
    chosen: int = 2,
    width: int = 24,
    inner: int = 20,
    gated: bool = True,
    popular: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """popular: an expert whom every token chooses first"""
    scale = width**-0.5
    x = random(tokens, width, seed=1, dtype=dtype)
    up = random(count, inner * (2 if gated else 1), width, seed=2, dtype=dtype) * scale
    down = random(count, width, inner, seed=3, dtype=dtype) * scale
    logits = random(tokens, count, seed=4)
    if popular is not None:
        logits[:, popular] += 100.0
    experts, weights = reference.route(logits, None, Routing(count, chosen))
    wanted = choose("reference", exact=False).experts(x, experts, weights, up, down, gated=gated)
    found = twin.experts(x, experts, weights, up, down, gated=gated)
    assert found.dtype == wanted.dtype
    tolerance = 1e-5 if dtype is torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few tokens make several blocks of rows, outputs and inputs."""
    monkeypatch.setattr(twin, "TILES", {8: twin.Tiles(16, 16, 16, warps=1, stages=1)})


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("tokens", [0, 1, 3, 11])
def test_mixtures_equal_the_reference(tokens: int) -> None:
    mix(tokens)


@pytest.mark.usefixtures("small_tiles")
def test_experts_without_a_gate() -> None:
    mix(5, gated=False, inner=32, width=16)


@pytest.mark.usefixtures("small_tiles")
def test_an_expert_whom_everybody_chooses() -> None:
    """Far more rows than equal shares: its programs take them in turns."""
    mix(70, count=40, chosen=1, popular=3)


@pytest.mark.usefixtures("small_tiles")
def test_half_precision() -> None:
    mix(4, dtype=torch.float16)


def test_wider_tiles_for_more_rows() -> None:
    assert [twin.tiles_for(rows).rows for rows in (0.1, 8, 9, 48, 49)] == [16, 16, 64, 64, 128]


@everywhere
@pytest.mark.parametrize("tokens", [1, 6, 33, 300])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "squared"])
def test_every_tile(tokens: int, gated: bool) -> None:
    mix(tokens, gated=gated, width=144, inner=96)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 16, 64, 2048])
def test_real_experts(tokens: int, dtype: torch.dtype) -> None:
    mix(tokens, count=128, chosen=8, width=2048, inner=512, dtype=dtype)
