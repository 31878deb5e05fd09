"""The Triton kernels of the delta rule gated by channel against the reference, windows and runs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from holdfast.ops.kda.reference import KDA

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
from holdfast.ops.kda import triton as kda

everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow
TILES = kda.Tiles(values=16, warps=1)


def draw(heads: int, key_dim: int, value_dim: int, count: int, seed: int, decay: str) -> dict[str, Tensor]:
    generator = seeded(seed)
    keys = (count, heads, key_dim)
    return {
        "q": torch.randn(keys, generator=generator),
        "k": normalize(torch.randn(keys, generator=generator), dim=-1),
        "v": torch.randn(count, heads, value_dim, generator=generator),
        "log_g": decays(keys, decay, generator),
        "beta": torch.rand(count, heads, generator=generator),
    }


def twin(heads: int, key_dim: int, value_dim: int) -> Twin:
    return Twin(
        rule=KDA((0, 1, 3, 2)),
        advance=lambda inputs, pool, step, out: kda.advance(
            **inputs, pool=pool, step=step, out=out, tiles=TILES, run_tiles=TILES
        ),
        draw=partial(draw, heads, key_dim, value_dim),
        state=(heads, key_dim, value_dim),
        output=(heads, value_dim),
        entries={"k": "k", "u": "v", "log_g": "log_g"},
    )


SMALL = twin(2, 8, 6)


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


def test_runs_equal_the_reference() -> None:
    """A window, a run within a line, padding, and one that folds, passes a block's end and leaves a tail."""
    compare(twin(1, 8, 6), [RUNS[0], *RUNS[2:5]], seed=7, exports=[(3, 64), (3, 128), (3, 144)])


@everywhere
@pytest.mark.parametrize("decay", ["mixed", "weak"])
def test_long_runs_equal_the_reference(decay: str) -> None:
    compare(SMALL, RUNS, seed=7, decay=decay, exports=EXPORTED)


def test_runs_that_catch_up_leave_what_the_reference_does() -> None:
    compare(SMALL, BEHIND, seed=7)


def test_runs_round_where_the_chunk_form_does() -> None:
    compare(SMALL, BLOCKS, seed=8, dtype=NARROW, decay="weak")


@everywhere
@pytest.mark.parametrize("shape", [(2, 16, 6), (1, 20, 40)], ids=str)
def test_every_shape(shape: tuple[int, int, int]) -> None:
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
