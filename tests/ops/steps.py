"""Steps and pools for one operation at a time. Whatever a step is not meant to read is NaN."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from holdfast.config import journal_capacity, ring_capacity
from holdfast.ops.places import ConvState, TemporalState
from holdfast.ops.rounding import GREATEST, SCALE_DTYPE
from holdfast.ops.step import Export, StateStep, Tree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GRID = 16
WINDOW = 4


@dataclass(frozen=True)
class Lane:
    """A row, its tokens, and where it stands: base is a line, position - base entries are in its journal."""

    row: int
    count: int
    position: int = 0
    base: int = 0
    slot: int = 0
    run: bool | None = None
    """None: a run if it is longer than a window."""
    behind: bool = False
    """A run that leaves a line on which it ends to whoever comes next, as windows do."""

    @property
    def is_run(self) -> bool:
        return self.count > WINDOW if self.run is None else self.run

    def end_base(self, grid: int) -> int:
        if not self.row:
            return self.base
        if self.is_run:
            return (self.position + self.count - self.behind) // grid * grid
        return self.base + (grid if self.position - self.base >= grid else 0)


BEHIND = [
    Lane(row=1, count=64, position=64, base=64, slot=1, run=True, behind=True),
    Lane(row=2, count=1, position=2 * GRID, base=GRID, slot=2, run=True, behind=True),
    Lane(row=0, count=0, run=True, behind=True),
    Lane(row=3, count=0, position=2 * GRID + 3, base=GRID, slot=3, run=True),
    Lane(row=4, count=3, position=2 * GRID - 3, base=GRID, slot=4, run=True, behind=True),
    Lane(row=5, count=24, position=40, base=32, slot=5, run=True),
    Lane(row=6, count=40, position=40 + GRID, base=32, slot=6, run=True, behind=True),
    Lane(row=7, count=0, position=2 * GRID, base=GRID, slot=7, run=True, behind=True),
]
"""Catching up: a whole block that ends on a line, one token beyond a line, padding, nothing but a fold, three tokens
up to a line, a run to the line of its grant, one that passes several, and nothing at all."""


def make_step(
    lanes: Sequence[Lane],
    *,
    write_slots: Sequence[int] | None = None,
    exports: tuple[Export, ...] = (),
    tree: Tree | None = None,
    grid: int = GRID,
) -> StateStep:
    """`lanes` windows first. A fold goes to the lane's own slot, unless `write_slots` says otherwise."""
    windows = [lane.count for lane in lanes if not lane.is_run]
    assert [lane.is_run for lane in lanes] == sorted(lane.is_run for lane in lanes), "windows come first"
    return StateStep(
        rows=_ids([lane.row for lane in lanes]),
        counts=_ids([lane.count for lane in lanes]),
        offsets=_ids([0, *itertools.accumulate(lane.count for lane in lanes)]),
        position=_ids([lane.position for lane in lanes]),
        base=_ids([lane.base for lane in lanes]),
        read_slot=_ids([lane.slot for lane in lanes]),
        end_base=_ids([lane.end_base(grid) for lane in lanes]),
        write_slot=_ids([lane.slot for lane in lanes] if write_slots is None else write_slots),
        num_windows=len(windows),
        longest_window=max(windows, default=0),
        grid=grid,
        exports=exports,
        tree=tree,
    )


def ancestors_of(parents: list[list[int]], longest: int) -> Tree:
    """parents: of each window's nodes, the one that it follows, -1 if none"""
    ancestors = torch.zeros(len(parents), longest, longest, dtype=torch.bool)
    depths = torch.zeros(len(parents), longest, dtype=torch.int64)
    for lane, window in enumerate(parents):
        for node, parent in enumerate(window):
            if parent >= 0:
                ancestors[lane, node] = ancestors[lane, parent]
                depths[lane, node] = depths[lane, parent] + 1
            ancestors[lane, node, node] = True
    return Tree(ancestors, depths)


def random_tree(lanes: Sequence[Lane], seed: int) -> Tree:
    """For the windows among these lanes."""
    draws, counts = seeded(seed), [lane.count for lane in lanes if not lane.is_run]
    parents = [[int(torch.randint(-1, node, (), generator=draws)) if node else -1 for node in range(count)]
               for count in counts]  # fmt: skip
    return ancestors_of(parents, max(counts))


def on_device(step: StateStep) -> StateStep:
    names = ("rows", "counts", "offsets", "position", "base", "read_slot", "end_base", "write_slot")
    there = {name: getattr(step, name).to(DEVICE) for name in names}
    tree = step.tree and replace(
        step.tree, ancestors=step.tree.ancestors.to(DEVICE), depths=step.tree.depths.to(DEVICE)
    )
    return replace(step, _made={}, tree=tree, **there)


def _ids(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def conv_pool(
    rows: int, slots: int, channels: int, width: int, dtype: torch.dtype = torch.float32
) -> ConvState:
    return ConvState(
        saved=torch.full((slots + 1, width - 1, channels), torch.nan, dtype=dtype),
        ring=torch.full((rows + 1, ring_capacity(width, WINDOW), channels), torch.nan, dtype=dtype),
    )


@dataclass(frozen=True)
class Heads:
    """Of a gated delta net."""

    keys: int = 2
    values: int = 4
    key_dim: int = 8
    value_dim: int = 6


def delta_pool(
    rows: int,
    slots: int,
    heads: Heads,
    *,
    dtype: torch.dtype = torch.float32,
    swapped: bool = False,
    grid: int = GRID,
    window: int = WINDOW,
) -> TemporalState:
    """swapped: the state is stored [K, V]"""
    places = journal_capacity(grid, window)
    state = (heads.key_dim, heads.value_dim) if swapped else (heads.value_dim, heads.key_dim)
    scales = (1, heads.value_dim) if swapped else (heads.value_dim, 1)
    shape, scaled = (slots + 1, heads.values), dtype in GREATEST
    return TemporalState(
        saved=torch.full((*shape, *state), 77 if scaled else torch.nan, dtype=dtype),
        scale=torch.full((*shape, *scales), torch.nan, dtype=SCALE_DTYPE) if scaled else None,
        journal={
            "k": torch.full((rows + 1, places, heads.keys, heads.key_dim), torch.nan),
            "u": torch.full((rows + 1, places, heads.values, heads.value_dim), torch.nan),
            "log_g": torch.full((rows + 1, places, heads.values), torch.nan),
        },
    )


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def delta_inputs(count: int, heads: Heads, seed: int, decay: str = "mild") -> dict[str, Tensor]:
    """decay: weak -1e-4, mild up to -0.5, strong -20, violent -300 a token, or mixed: any of them"""
    generator = seeded(seed)
    mild = -0.5 * torch.rand(count, heads.values, generator=generator)
    levels = torch.tensor([-1e-4, -0.1, -20.0, -300.0])
    mixed = levels[torch.randint(4, mild.shape, generator=generator)]
    fixed = {"weak": -1e-4, "strong": -20.0, "violent": -300.0}
    log_g = {"mild": mild, "mixed": mixed}.get(decay)
    keys = torch.randn(count, heads.keys, heads.key_dim, generator=generator)
    return {
        "q": torch.randn(count, heads.keys, heads.key_dim, generator=generator),
        "k": torch.nn.functional.normalize(keys, dim=-1),
        "v": torch.randn(count, heads.values, heads.value_dim, generator=generator),
        "log_g": torch.full_like(mild, fixed[decay]) if log_g is None else log_g,
        "beta": torch.rand(count, heads.values, generator=generator),
    }


def same_bits(a: Tensor, b: Tensor) -> bool:
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def assert_same(got: object, wanted: object) -> None:
    """Field by field, whole numbers."""
    for field in fields(wanted):  # type: ignore[arg-type]
        found, expected = getattr(got, field.name), getattr(wanted, field.name)
        assert torch.equal(found.long(), expected.long()), field.name
