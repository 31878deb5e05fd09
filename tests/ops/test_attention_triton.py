"""The Triton kernels of attention against the reference: the same outputs and pages, and nothing else written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.ops.attention import reference
from holdfast.ops.attention.heads import HeadNorms
from holdfast.ops.norm.reference import rms_norm
from holdfast.ops.places import KVState, Place
from holdfast.ops.rope.reference import RotarySpec, rotary_table, rotate
from holdfast.ops.step import Tree

from .paged import MIXED, SCALE, Paged
from .steps import DEVICE, Lane, ancestors_of, make_step, on_device, same_bits, seeded

pytest.importorskip("triton")
from holdfast.ops.attention import triton as twin

everywhere = pytest.mark.gpu if DEVICE.type == "cuda" else pytest.mark.slow
LONG = [
    Lane(1, 1, 70),
    Lane(2, 3, 500),
    Lane(0, 2),
    Lane(3, 0, 9),
    Lane(4, 1),
    Lane(5, 19, 250),
    Lane(0, 6),
    Lane(6, 40),
]
"""Contexts of more than one split; empty lanes and padding among them."""
FLOAT32 = 2e-6 if DEVICE.type == "cpu" else 5e-6
"""A GPU multiplies float32 as three products of 11 bits each: 2^-21 of a score, and scores here reach 5."""
UNTOUCHED = 1234.0
"""In outputs; NaN would not tell that a lane of padding was written what it found in page 0."""


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes are then cut as large ones are."""
    monkeypatch.setattr(twin, "LEAST_SPLIT", 16)
    for table in ("WINDOW_TILES", "RUN_TILES"):
        tiles = {width: replace(t, context=32, rows=16) for width, t in getattr(twin, table).items()}
        monkeypatch.setattr(twin, table, tiles)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=seeded(seed)).to(DEVICE, dtype)


def agree(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert torch.equal(got.isnan(), wanted.isnan()), "written where nothing should be, or not where it should"
    tolerance = FLOAT32 if dtype is torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        got.double().nan_to_num(), wanted.double().nan_to_num(), rtol=tolerance, atol=tolerance
    )


def attend(
    lanes: list[Lane],
    *,
    page: int = 16,
    heads: tuple[int, int] = (4, 2),
    dim: int = 8,
    value_dim: int | None = None,
    splits: int | None = None,
    tree: Tree | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> None:
    """Both attend to pages of which every byte that no lane may read is NaN."""
    paged = Paged(lanes, page=page, heads=heads, dim=dim, seed=seed)
    for lane, context in zip(lanes, paged.context, strict=True):
        for stored, known in zip(paged.pool, context, strict=True):
            for position in range(lane.position, lane.position + lane.count if lane.row else 0):
                stored[paged.table[lane.row, position // page], position % page] = known[position]
    pool = KVState(*(part.to(DEVICE, dtype) for part in paged.pool))
    if value_dim is not None:
        pool = KVState(pool.keys, pool.keys[..., :0])
    queries, table = paged.queries.to(DEVICE, dtype), paged.table.to(DEVICE)
    step, scale = on_device(make_step(lanes, tree=tree)), dim**-0.5
    wanted = reference.paged_attention(queries, pool, table, step, scale, value_dim=value_dim, exact=False)
    out = torch.full_like(wanted, UNTOUCHED)
    twin.paged_attention(queries, pool, table, step, scale, value_dim=value_dim, out=out, splits=splits)
    agree(out, wanted.masked_fill(wanted.isnan(), UNTOUCHED), dtype)


@pytest.mark.parametrize("splits", [1, 3])
def test_windows_and_runs_equal_the_reference(splits: int) -> None:
    attend(LONG, heads=(3, 1) if splits > 1 else (4, 2), splits=splits)


def test_tiles_may_be_shorter_and_longer_than_a_page() -> None:
    lanes = [Lane(1, 2, 71), Lane(2, 5, 40)]
    attend(lanes, page=64, heads=(2, 1), splits=2)
    attend(lanes, page=8, heads=(2, 1), splits=2)


@pytest.mark.parametrize("splits", [1, 4])
def test_in_a_tree_a_node_sees_its_ancestors_only(splits: int) -> None:
    lanes = [Lane(1, 4, 62), Lane(0, 2), Lane(2, 3), Lane(3, 1, 20), Lane(4, 9, 2)]
    tree = ancestors_of([[-1, 0, 0, 1], [-1, -1], [-1, -1, 1], [-1]], 4)
    attend(lanes, splits=splits, tree=tree)


def test_a_window_wider_than_a_program() -> None:
    attend([Lane(1, 4, 40), Lane(2, 3, 3)], heads=(7, 1), splits=2)


def test_half_precision() -> None:
    attend(MIXED, heads=(2, 1), dtype=torch.float16, splits=2)


@pytest.mark.parametrize("value_dim", [16, 5])
def test_values_may_be_channels_of_what_is_kept_as_keys(value_dim: int) -> None:
    lanes = [Lane(1, 2, 45), Lane(0, 1), Lane(2, 1), Lane(3, 11, 9)]
    attend(lanes, heads=(3, 1), dim=20, value_dim=value_dim, splits=2)


@everywhere
@pytest.mark.parametrize("splits", [1, 7])
@pytest.mark.parametrize("heads", [(6, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("dim", [5, 64])
@pytest.mark.parametrize("page", [1, 64])
def test_every_shape(splits: int, heads: tuple[int, int], dim: int, page: int) -> None:
    attend(LONG, page=page, heads=heads, dim=dim, splits=splits, seed=dim)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("splits", [None, 1, 16])
def test_real_heads(dtype: torch.dtype, dim: int, splits: int | None) -> None:
    lanes = [Lane(1, 1, 700), Lane(2, 4, 3000), Lane(0, 1), Lane(3, 300, 100), Lane(4, 37)]
    attend(lanes, page=64, heads=(16, 4), dim=dim, splits=splits, dtype=dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_real_latents(dtype: torch.dtype) -> None:
    lanes = [Lane(1, 1, 700), Lane(2, 4, 3000), Lane(3, 300, 100)]
    attend(lanes, page=64, heads=(32, 1), dim=576, value_dim=512, dtype=dtype)


def prepare(
    lanes: list[Lane],
    *,
    heads: tuple[int, int] = (4, 2),
    dim: int = 16,
    normed: bool = True,
    zero_centred: bool = False,
    fraction: float | None = 1.0,
    gated: bool = False,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Views of one merged projection in, as layers have them; pages and queries out, as the reference makes them."""
    tokens, (query_heads, key_heads) = sum(lane.count for lane in lanes), heads
    step = on_device(make_step(lanes))
    paged = Paged(lanes, page=4, heads=heads, dim=dim)
    table = paged.table.to(DEVICE)
    found = KVState(*(torch.full_like(part, torch.nan).to(DEVICE, dtype) for part in paged.pool))
    expected = KVState(*(part.clone() for part in found))
    wide = query_heads * dim * (2 if gated else 1)
    merged = random(tokens, wide + 2 * key_heads * dim, seed=3, dtype=dtype)
    queries, keys, values = merged.split((wide, key_heads * dim, key_heads * dim), -1)
    queries = queries.unflatten(-1, (query_heads, dim * (2 if gated else 1)))[..., :dim]
    keys, values = keys.unflatten(-1, (-1, dim)), values.unflatten(-1, (-1, dim))
    norm = HeadNorms(random(dim, seed=4, dtype=dtype), random(dim, seed=5, dtype=dtype), 1e-5, zero_centred)
    rotary = None
    if fraction is not None:
        cos, sin = rotary_table(RotarySpec(theta=1e4, fraction=fraction), dim, 64)
        rotary = (cos.to(DEVICE), sin.to(DEVICE))

    out = torch.full((tokens, query_heads, dim), torch.nan, device=DEVICE, dtype=dtype)
    given = (queries, keys, values, found, table, step)
    twin.prepare(*given, norm=norm if normed else None, rotary=rotary, out=out)
    if normed:
        queries = rms_norm(queries, norm.queries, norm.eps, zero_centred=zero_centred)
        keys = rms_norm(keys, norm.keys, norm.eps, zero_centred=zero_centred)
    if rotary is not None:
        _, positions = step.places_of(tokens)
        turns = [part[positions] for part in rotary]
        queries, keys = rotate(queries, *turns), rotate(keys, *turns)
    reference.write_kv(keys, values, expected, table, step)
    rows, _ = step.places_of(tokens)
    agree(out, queries.masked_fill((rows == 0)[:, None, None], torch.nan), dtype)
    agree(found.keys, expected.keys, dtype)
    assert same_bits(found.values, expected.values)


@pytest.mark.parametrize(
    "options",
    [
        {"normed": False, "fraction": None},
        {"zero_centred": True, "fraction": 0.5, "gated": True},
        {"heads": (6, 3), "dim": 24, "fraction": 0.25},
        {"dtype": torch.float16},
        {"heads": (0, 2)},
    ],
    ids=["as they are", "part of a head turns", "odd shapes", "half precision", "keys that nobody asks for"],
)
def test_queries_and_keys_are_normed_and_turned_on_their_way(options: dict[str, Any]) -> None:
    prepare([Lane(1, 3, 7), Lane(0, 2), Lane(2, 0, 4), Lane(3, 1), Lane(4, 6, 2)], **options)


def test_tokens_beyond_the_last_lane_are_padding() -> None:
    step = make_step([Lane(3, 2, 5), Lane(0, 1), Lane(2, 1, 9)])
    rows, positions = step.places_of(6)
    assert rows.tolist() == [3, 3, 0, 2, 0, 0]
    assert positions[rows > 0].tolist() == [5, 6, 9]


def test_latents_are_stored_without_values() -> None:
    lanes = [Lane(1, 2, position=5), Lane(0, 1), Lane(2, 7)]
    step, paged = on_device(make_step(lanes)), Paged(lanes, page=4, heads=(3, 1), dim=20)
    empty = torch.full_like(paged.pool.keys, torch.nan).to(DEVICE)
    found, expected = (KVState(keys, keys[..., :0]) for keys in (empty, empty.clone()))
    latents = random(10, 1, 20, seed=1)
    twin.write_kv(latents, latents[..., :0], found, paged.table.to(DEVICE), step)
    reference.write_kv(latents, latents[..., :0], expected, paged.table.to(DEVICE), step)
    assert same_bits(found.keys, expected.keys)


def test_every_token_of_every_run_is_in_the_work_once() -> None:
    lanes = [Lane(1, 2), Lane(2, 5), Lane(3, 0, run=True), Lane(4, 12), Lane(5, 9)]
    lane, first = twin.run_work(make_step(lanes), 30, 4).tolist()
    work = [(n, f) for n, f in zip(lane, first, strict=True) if f < lanes[n].count]
    assert work == [(4, 8), (4, 4), (4, 0), (3, 8), (3, 4), (3, 0), (1, 4), (1, 0)]


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[str, Place]] = []

    def read(self, place: Place) -> None:
        self.told.append(("read", place))

    def wrote(self, place: Place) -> None:
        self.told.append(("wrote", place))


def test_the_watch_is_told_what_the_reference_tells() -> None:
    lanes = [Lane(1, 2, 9), Lane(0, 1), Lane(2, 0, 4), Lane(3, 6)]
    step = make_step(lanes)
    logs = []
    for module in (reference, twin):
        paged = Paged(lanes, page=4)
        log, pool = Log(), KVState(*(part.nan_to_num().to(DEVICE) for part in paged.pool))
        pool = replace(pool, watch=log)
        moved, table = on_device(step), paged.table.to(DEVICE)
        fresh = random(9, 2, 8, seed=1)
        module.write_kv(fresh, fresh, pool, table, moved)
        options = {"exact": False} if module is reference else {}
        module.paged_attention(paged.queries.to(DEVICE), pool, table, moved, SCALE, **options)
        logs.append(log.told)
    expected, found = logs
    assert len(expected) == 3 and [what for what, _ in found] == [what for what, _ in expected]
    for (_, a), (_, b) in zip(expected, found, strict=True):
        assert type(a) is type(b)
        for name, value in vars(a).items():
            other = getattr(b, name)
            assert torch.equal(value, other) if isinstance(value, Tensor) else value == other


def test_contexts_are_split_as_far_as_that_occupies_the_device() -> None:
    wanted = 4 * 132
    assert twin.split_count(1, longest=1 << 17, wanted=wanted) == twin.MOST_SPLITS
    assert twin.split_count(64, longest=1 << 17, wanted=wanted) == 8
    assert twin.split_count(64, longest=2 * twin.LEAST_SPLIT + 1, wanted=wanted) == 3
    assert twin.split_count(512, longest=1 << 17, wanted=wanted) == 1
    assert twin.split_count(4096, longest=1 << 17, wanted=wanted) == 1
