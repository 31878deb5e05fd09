"""Whether an access beyond a kernel's tensors would be seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
tl: Any = pytest.importorskip("triton.language")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted")


@triton.jit
def double(x, out, number, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < number, other=0.0), mask=at < number)


@pytest.mark.parametrize(("given", "kept", "what"), [(5, 8, "loads"), (8, 5, "stores")])
def test_an_access_beyond_a_tensor_is_an_error(given: int, kept: int, what: str) -> None:
    x, out = torch.ones(given), torch.zeros(kept)
    double[(1,)](x, out, min(given, kept), BLOCK=8)
    assert out.tolist()[:5] == [2.0] * 5
    with pytest.raises(Exception, match=f"3 of 8 {what} beyond all tensors"):
        double[(1,)](x, out, 8, BLOCK=8)
