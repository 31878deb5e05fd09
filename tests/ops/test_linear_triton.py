"""Products of few tokens in Triton against torch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from .steps import seeded

pytest.importorskip("triton")
from holdfast.ops.linear import triton as twin

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.gpu if DEVICE.type == "cuda" else []
DTYPE = torch.float16  # the interpreter has no right bfloat16
ROUNDING = {torch.float16: 2e-3, torch.float32: 2e-6}


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("tokens", [1, 2, 13])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float16, (40, 33)),
        (torch.float16, (17, 600)),
        (torch.float16, (6200, 24)),
        (torch.float32, (40, 33)),
        (torch.float32, (17, 600)),
    ],
    ids=str,
)
def test_products_of_few_tokens(
    tokens: int, shape: tuple[int, int], biased: bool, dtype: torch.dtype
) -> None:
    outputs, inputs = shape
    wide = torch.randn(tokens, inputs + 5, generator=seeded(1)).to(DEVICE, dtype)
    x = wide[:, 3 : 3 + inputs]  # a view of a wider projection
    weight = torch.randn(outputs, inputs, generator=seeded(2)).to(DEVICE, dtype)
    bias = torch.randn(outputs, generator=seeded(3)).to(DEVICE, dtype) if biased else None
    assert twin.takes(x, weight)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = twin.linear(x, weight, bias)
    assert got.dtype == dtype
    near = ROUNDING[dtype]
    torch.testing.assert_close(got.double(), wanted, rtol=near, atol=near * inputs**0.5)


@pytest.mark.parametrize("splits", [1, 3, 7])
def test_inputs_that_are_split_are_added_up_in_order(splits: int) -> None:
    """And the next product finds the counters as they were."""
    x = torch.randn(5, 100, generator=seeded(1)).to(DEVICE, DTYPE)
    weight = torch.randn(40, 100, generator=seeded(2)).to(DEVICE, DTYPE)
    tiles = twin.Tiles(16, 16, warps=1, splits=splits)
    for _ in range(2):
        got = twin.linear(x, weight, tiles=tiles)
        torch.testing.assert_close(got.double(), x.double() @ weight.double().T, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("dtype", ROUNDING, ids=["float16", "float32"])
@pytest.mark.parametrize("shape", [(50, 70), (19, 700)], ids=str)
@pytest.mark.parametrize("tokens", [1, 6, 15])
def test_gate_and_up_in_one(tokens: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    outputs, inputs = shape
    x = torch.randn(tokens, inputs, generator=seeded(1)).to(DEVICE, dtype)
    weight = torch.randn(2 * outputs, inputs, generator=seeded(2)).to(DEVICE, dtype) / 8
    gate, up = F.linear(x.double(), weight.double()).to(dtype).chunk(2, -1)
    got = twin.gated(x, weight)
    assert got.shape == (tokens, outputs) and got.dtype == dtype
    near = 3 * ROUNDING[dtype]
    torch.testing.assert_close(got.double(), (F.silu(gate) * up).double(), rtol=near, atol=near)


def test_what_is_left_to_a_library() -> None:
    x, weight = torch.zeros(17, 8, dtype=DTYPE), torch.zeros(4, 8, dtype=DTYPE)
    assert twin.takes(x[:16], weight)
    assert not twin.takes(x, weight), "too many tokens"
    assert not twin.takes(x[:0], weight)
    assert not twin.takes(x[:1].float(), weight), "one is wider"
    assert twin.takes(x.float(), weight.float()), "in float32 a library is good at large products only"
    assert not twin.takes(torch.zeros(17, 1024), torch.zeros(1024, 1024))
    assert not twin.takes(x[:1], torch.zeros(8, 4, dtype=DTYPE).t()), "rows that lie apart"
