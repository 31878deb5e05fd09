"""State space duality's Triton kernels against the reference, windows and runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from holdfast.ops.places import TemporalState
from holdfast.ops.ssd.reference import SSD
from holdfast.ops.step import StateStep

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
from holdfast.ops.ssd import triton as ssd

everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow
TILES = ssd.Tiles(channels=16, warps=1)


def draw(
    heads: int, groups: int, channels: int, states: int, count: int, seed: int, decay: str
) -> dict[str, Tensor]:
    generator = seeded(seed)
    return {
        "x": torch.randn(count, heads, channels, generator=generator),
        "b": torch.randn(count, groups, states, generator=generator),
        "c": torch.randn(count, groups, states, generator=generator),
        "dt": torch.rand(count, heads, generator=generator),
        "log_decay": decays((count, heads), decay, generator),
    }


def twin(heads: int, groups: int, channels: int, states: int) -> Twin:
    return Twin(
        rule=SSD((0, 1, 3, 2)),
        advance=lambda inputs, pool, step, out: ssd.advance(
            **inputs, pool=pool, step=step, out=out, tiles=TILES, run_tiles=TILES
        ),
        draw=partial(draw, heads, groups, channels, states),
        state=(heads, states, channels),
        output=(heads, channels),
        entries={name: name for name in ("x", "b", "dt", "log_decay")},
    )


SMALL = twin(2, 1, 5, 4)


@pytest.mark.parametrize("window", [1, 3])
def test_windows_equal_the_reference(window: int) -> None:
    compare(SMALL, windows_at(window, window), seed=window)


def test_a_window_as_long_as_a_line_folds_and_passes_the_next() -> None:
    compare(SMALL, windows_at(4, 4, grid=4), seed=4, grid=4, decay="mild")


@pytest.mark.parametrize("window", [1, 2])
def test_a_narrow_checkpoint_is_rounded_before_it_is_used(window: int) -> None:
    compare(SMALL, windows_at(window, 9), seed=5, dtype=NARROW, decay="mild")


def test_in_a_tree_a_node_sees_its_ancestors_only() -> None:
    compare(SMALL, windows_at(4, 3), seed=3, decay="mild", tree=True)


@everywhere
@pytest.mark.parametrize("window", [2, 7, 16])
@pytest.mark.parametrize("decay", ["mild", "violent", "mixed"])
def test_every_tree(window: int, decay: str) -> None:
    for seed in range(3):
        compare(SMALL, windows_at(window, seed), seed=seed, decay=decay, tree=True)


def test_a_step_of_nothing_but_folds() -> None:
    compare(SMALL, [Lane(row=2, count=0, position=2 * GRID, base=GRID, slot=2)], seed=6)


@pytest.mark.parametrize("decay", ["mixed", "weak"])
def test_runs_equal_the_reference(decay: str) -> None:
    compare(SMALL, RUNS, seed=7, decay=decay, exports=EXPORTED)


def test_runs_that_catch_up_leave_what_the_reference_does() -> None:
    compare(SMALL, BEHIND, seed=7)


def test_runs_round_where_the_chunk_form_does() -> None:
    compare(SMALL, BLOCKS, seed=8, dtype=NARROW, decay="weak")


@everywhere
@pytest.mark.parametrize("shape", [(4, 2, 6, 4), (3, 3, 16, 16), (6, 2, 40, 20), (1, 1, 4, 130)], ids=str)
def test_every_shape(shape: tuple[int, int, int, int]) -> None:
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
@pytest.mark.parametrize("channels", [32, 64, 128])
def test_runs_of_bfloat16_inputs_at_real_sizes(channels: int) -> None:
    """Whole warp groups multiply only here: smaller products, and those of float32, take other instructions."""
    real = twin(4, 2, channels, 128)

    def rounded(count: int, seed: int, decay: str) -> dict[str, Tensor]:
        drawn = draw(4, 2, channels, 128, count, seed, decay)
        return drawn | {name: drawn[name].bfloat16() for name in ("x", "b", "c")}

    def advance(inputs: dict[str, Tensor], pool: TemporalState, step: StateStep, out: Tensor) -> object:
        return ssd.advance(**inputs, pool=pool, step=step, out=out)

    compare(replace(real, draw=rounded, advance=advance), RUNS, seed=7, decay="mild", exports=EXPORTED)


@pytest.mark.gpu
def test_nothing_is_waited_for() -> None:
    assert_nothing_waited_for(SMALL, RUNS, EXPORTED)
