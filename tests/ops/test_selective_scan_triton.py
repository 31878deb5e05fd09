"""The selective scan's Triton kernels against the reference, windows and runs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from holdfast.ops.selective_scan.reference import SelectiveScan

from .steps import BEHIND, GRID, Lane, seeded
from .twins import (
    BLOCKS,
    DEVICE,
    EXPORTED,
    NARROW,
    RUNS,
    Twin,
    assert_nothing_waited_for,
    compare,
    decays,
    windows_at,
)

pytest.importorskip("triton")
from holdfast.ops.selective_scan import triton as selective_scan

everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow


def draw(channels: int, states: int, count: int, seed: int, decay: str) -> dict[str, Tensor]:
    """Time steps such that what decays at rate -1 does so by as much as `decay` says; it writes about 1."""
    generator = seeded(seed)
    dt = -decays((count, channels), decay, generator)
    return {
        "x": torch.randn(count, channels, generator=generator) / dt.clamp(min=1e-4),
        "b": torch.randn(count, states, generator=generator),
        "c": torch.randn(count, states, generator=generator),
        "dt": dt,
    }


def twin(channels: int, states: int) -> Twin:
    rates = -torch.linspace(0.5, states, channels * states).reshape(channels, states).to(DEVICE)
    return Twin(
        rule=SelectiveScan(rates),
        advance=lambda inputs, pool, step, out: selective_scan.advance(
            **inputs, a=rates, pool=pool, step=step, out=out, tiles=selective_scan.Tiles(16)
        ),
        draw=partial(draw, channels, states),
        state=(channels, states),
        output=(channels,),
        entries={name: name for name in ("x", "b", "dt")},
    )


SMALL = twin(10, 3)


@pytest.mark.parametrize("window", [1, 3])
def test_windows_equal_the_reference(window: int) -> None:
    compare(SMALL, windows_at(window, window), seed=window)


def test_decode_that_folds_every_token() -> None:
    lanes = [
        Lane(row=1, count=1),
        Lane(row=2, count=1, position=7, base=6, slot=2),
        Lane(row=0, count=0),
        Lane(row=3, count=0, position=9, base=8, slot=3),
    ]
    compare(SMALL, lanes, seed=3, grid=1)


def test_a_window_as_long_as_a_line_folds_and_passes_the_next() -> None:
    compare(SMALL, windows_at(4, 4, grid=4), seed=4, grid=4, decay="mild")


def test_a_narrow_checkpoint_is_rounded_before_it_is_used() -> None:
    compare(SMALL, windows_at(2, 9), seed=5, dtype=NARROW, decay="mild")


def test_a_step_of_nothing_but_folds() -> None:
    compare(SMALL, [Lane(row=2, count=0, position=2 * GRID, base=GRID, slot=2)], seed=6)


def test_runs_equal_the_reference() -> None:
    compare(SMALL, RUNS, seed=7, exports=EXPORTED)


def test_runs_that_catch_up_leave_what_the_reference_does() -> None:
    compare(SMALL, BEHIND, seed=7)


def test_runs_round_where_the_chunk_form_does() -> None:
    compare(SMALL, BLOCKS, seed=8, dtype=NARROW, decay="weak")


@everywhere
@pytest.mark.parametrize("shape", [(5, 4), (40, 16)], ids=str)
def test_every_shape(shape: tuple[int, int]) -> None:
    for window in (1, 4):
        compare(twin(*shape), windows_at(window, window), seed=window, decay="mild")
    compare(twin(*shape), RUNS[:5], seed=9, exports=EXPORTED[:3])


@everywhere
@pytest.mark.parametrize("decay", ["weak", "mild", "strong", "violent", "mixed"])
def test_every_decay(decay: str) -> None:
    for window in (1, 2, 4):
        compare(SMALL, windows_at(window, window), seed=window, decay=decay)
    compare(SMALL, BLOCKS, seed=9, decay=decay)


@pytest.mark.gpu
def test_nothing_is_waited_for() -> None:
    assert_nothing_waited_for(SMALL, RUNS, EXPORTED)
