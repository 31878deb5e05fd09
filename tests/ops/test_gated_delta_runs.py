"""The Triton kernels for runs against the reference: the same outputs, journals, checkpoints and exports."""

from __future__ import annotations

import pytest
import torch

from holdfast.ops import journal
from holdfast.ops.gated_delta.reference import GatedDelta
from holdfast.ops.step import Export

from .steps import BEHIND, GRID, Heads, Lane, delta_inputs, make_step

pytest.importorskip("triton")
from holdfast.ops.gated_delta import triton_runs as twin

from .test_gated_delta_triton import (
    DEVICE,
    KV,
    agree,
    agree_checkpoints,
    copy,
    everywhere,
    filled_pool,
    on_device,
    tolerance_of,
)

SLOTS = 20


HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


def compare(
    heads: Heads,
    lanes: list[Lane],
    exports: tuple[Export, ...] = (),
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    decay: str = "mild",
) -> None:
    step = on_device(make_step(lanes, write_slots=[lane.slot + SLOTS for lane in lanes], exports=exports))
    inputs = delta_inputs(sum(lane.count for lane in lanes), heads, seed, decay)
    inputs = {name: x.to(DEVICE) for name, x in inputs.items()}
    expected = filled_pool(heads, lanes, seed + 100, dtype, decay)
    found = copy(expected)
    wanted = torch.full(inputs["v"].shape, torch.nan, device=DEVICE)
    journal.advance(GatedDelta(KV), inputs, expected, step, wanted, exact=False)
    out = torch.full(inputs["v"].shape, torch.nan, device=DEVICE)
    q, k = inputs.pop("q"), inputs.pop("k")
    twin.runs(torch.stack((q / 0.5, k), 1), **inputs, pool=found, step=step, out=out, scale=0.5)
    tolerance = 2e-5 if dtype is torch.float32 else 4 * tolerance_of(dtype)
    agree(out, wanted, tolerance)
    agree_checkpoints(found, expected, tolerance)
    for name, ring in expected.journal.items():
        agree(found.journal[name], ring, tolerance)


RUNS = [
    Lane(1, 70),  # cold, one whole block and a tail
    Lane(2, 5, position=20, base=16, slot=2),  # within a block, no line passed
    Lane(0, 9),
    Lane(3, 14, position=GRID + 19, base=GRID, slot=3),  # a line is pending behind it, none is ahead
    Lane(4, 133, position=60, base=48, slot=4),
    Lane(5, 64, position=64, base=64, slot=5),  # exactly a block
]
EXPORTS = (Export(4, 8, 64), Export(4, 9, 128), Export(0, 10, 64), Export(4, 11, 192))


def test_runs_equal_the_reference() -> None:
    compare(Heads(1, 2, 16, 6), RUNS, EXPORTS, decay="mixed")


def test_runs_that_catch_up_leave_what_the_reference_does() -> None:
    compare(Heads(1, 2, 16, 6), BEHIND, decay="mixed")


@pytest.mark.parametrize("dtype", [HALF, torch.int8], ids=["half", "byte"])
def test_a_narrow_checkpoint(dtype: torch.dtype) -> None:
    compare(Heads(1, 1, 16, 4), RUNS[3:], seed=3, dtype=dtype)


@pytest.mark.parametrize("kind", [torch.float32, HALF], ids=["float32", "half"])
def test_keys_that_repeat(kind: torch.dtype) -> None:
    """One key, written strongly and forgotten slowly: the system's inverse must not be made of large powers."""
    heads = Heads(1, 1, 16, 80)
    lanes = [Lane(1, 130, slot=1)]
    step = on_device(make_step(lanes))
    inputs = {name: x.to(DEVICE) for name, x in delta_inputs(130, heads, 1, "weak").items()}
    inputs["k"] = inputs["k"][:1].expand_as(inputs["k"])
    inputs |= {name: inputs[name].to(kind).float() for name in "qkv"}
    inputs["beta"] = torch.full_like(inputs["beta"], 0.999)
    expected = filled_pool(heads, lanes, 1, torch.float32, "weak")
    found = copy(expected)
    wanted, out = torch.full((2, *inputs["v"].shape), torch.nan, device=DEVICE)
    journal.advance(GatedDelta(KV), inputs, expected, step, wanted, exact=True)
    q, k = inputs.pop("q"), inputs.pop("k")
    inputs["v"] = inputs["v"].to(kind)
    twin.runs(torch.stack((q, k), 1).to(kind), **inputs, pool=found, step=step, out=out, scale=1.0)
    tolerance = 2e-5 if kind is torch.float32 else tolerance_of(kind)
    agree(out, wanted, tolerance)
    agree(found.saved, expected.saved, tolerance)


@everywhere
@pytest.mark.parametrize("heads", [Heads(2, 4, 16, 6), Heads(1, 3, 32, 48)], ids=["grouped", "three to one"])
@pytest.mark.parametrize("decay", ["weak", "mild", "strong", "violent", "mixed"])
def test_every_shape_and_decay(heads: Heads, decay: str) -> None:
    compare(heads, RUNS, EXPORTS, seed=7, decay=decay)
