"""A Triton twin of a recurrence against the reference: the same outputs, journals and checkpoints.

Whatever a step is not meant to read is NaN, and so is whatever it is not meant to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.config import journal_capacity
from holdfast.ops import journal
from holdfast.ops.journal import Inputs, Recurrence
from holdfast.ops.places import Cells, Checkpoints, Place, TemporalState
from holdfast.ops.step import Export, StateStep

from .steps import DEVICE, GRID, WINDOW, Lane, make_step, on_device, random_tree, seeded

NARROW = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter has no right bfloat16
BESIDE = 20
"""Folds go to the slot so many further on."""
EXPORTS = 40
"""Exports go to slots from here on."""
LEVELS = {"weak": -1e-4, "strong": -20.0, "violent": -300.0}


@dataclass(frozen=True)
class Twin:
    """rule    the reference
    advance  the twin: (inputs, pool, step, out)
    draw     inputs of so many tokens: (count, seed, decay)
    state    shape of a checkpoint, as stored
    output   shape of a token's output
    entries  of each field of the journal, the input that is as good as one
    """

    rule: Recurrence
    advance: Callable[[dict[str, Tensor], TemporalState, StateStep, Tensor], object]
    draw: Callable[[int, int, str], dict[str, Tensor]]
    state: tuple[int, ...]
    output: tuple[int, ...]
    entries: dict[str, str]


def decays(shape: tuple[int, ...], decay: str, generator: torch.Generator) -> Tensor:
    """weak -1e-4, mild up to -0.5, strong -20, violent -300 a token, or mixed: any of them"""
    mild = -0.5 * torch.rand(shape, generator=generator)
    levels = torch.tensor([-1e-4, -0.1, -20.0, -300.0])
    mixed = levels[torch.randint(4, shape, generator=generator)]
    return {"mild": mild, "mixed": mixed}.get(decay, torch.full(shape, LEVELS.get(decay, 0.0)))


def filled_pool(
    twin: Twin, lanes: Sequence[Lane], seed: int, dtype: torch.dtype, decay: str, grid: int
) -> TemporalState:
    """Checkpoints and entries where the lanes have them, NaN everywhere else."""
    longest = max((lane.count for lane in lanes if not lane.is_run), default=0)
    rows, capacity = max(lane.row for lane in lanes) + 1, journal_capacity(grid, max(WINDOW, longest))
    saved = torch.full((EXPORTS + 8, *twin.state), torch.nan, dtype=dtype)
    none = twin.draw(0, 0, decay)
    rings = {
        name: torch.full((rows, capacity, *none[like].shape[1:]), torch.nan, dtype=none[like].dtype)
        for name, like in twin.entries.items()
    }
    for number, lane in enumerate(lanes):
        if not lane.row:
            continue
        if lane.base:
            saved[lane.slot] = torch.randn(twin.state, generator=seeded(seed + 7 * number)).to(dtype)
        held = twin.draw(lane.position - lane.base, seed + number, decay)
        places = torch.arange(lane.base, lane.position) % capacity
        for name, like in twin.entries.items():
            rings[name][lane.row, places] = held[like]
    return TemporalState(saved.to(DEVICE), {name: ring.to(DEVICE) for name, ring in rings.items()})


def agree(got: Tensor, wanted: Tensor, tolerance: float, what: str) -> None:
    assert torch.equal(got.isnan(), wanted.isnan()), f"{what}: written where nothing should be, or not where"
    got, wanted = got.double().nan_to_num(), wanted.double().nan_to_num()
    off = float((got - wanted).norm()) / (1.0 + float(wanted.norm()))
    assert off <= tolerance, f"{what}: {off:.1e} off"


class Told:
    """A watch that keeps what it is told, in a form that can be compared."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[list[int]]]] = []

    def read(self, place: Place) -> None:
        self._keep("read", place)

    def wrote(self, place: Place) -> None:
        self._keep("wrote", place)

    def _keep(self, what: str, place: Place) -> None:
        if isinstance(place, Checkpoints):
            self.log.append((what, [x.tolist() for x in (place.rows, place.slots, place.position)]))
        elif isinstance(place, Cells):
            self.log.append((what, [x.tolist() for x in (place.rows, place.first, place.where)]))


def compare(
    twin: Twin,
    lanes: Sequence[Lane],
    *,
    seed: int,
    decay: str = "mixed",
    dtype: torch.dtype = torch.float32,
    exports: Sequence[tuple[int, int]] = (),
    grid: int = GRID,
    tree: bool = False,
) -> None:
    """exports: (lane, line);  tree: windows branch. Narrow checkpoints are rounded in the same places on both sides:
    what is left is the noise of float32, and far less than one rounding that is missing."""
    step = make_step(
        lanes,
        write_slots=[lane.slot + BESIDE for lane in lanes],
        exports=tuple(Export(lane, EXPORTS + i, line) for i, (lane, line) in enumerate(exports)),
        grid=grid,
        tree=random_tree(lanes, seed) if tree else None,
    )
    inputs = twin.draw(sum(lane.count for lane in lanes), seed, decay)
    inputs = {name: x.to(DEVICE) for name, x in inputs.items()}
    pool = filled_pool(twin, lanes, seed + 100, dtype, decay, grid)
    wanted, expected = _run(_reference(twin.rule), inputs, pool, step, twin.output)
    out, found = _run(twin.advance, inputs, pool, step, twin.output)
    tolerance = 2e-6 if dtype is torch.float32 else 0.03 * float(torch.finfo(dtype).eps)
    agree(out, wanted, tolerance, "outputs")
    agree(found.saved, expected.saved, tolerance, "checkpoints")
    for name, ring in expected.journal.items():
        agree(found.journal[name], ring, tolerance, f"journal of {name}")
    assert isinstance(found.watch, Told) and isinstance(expected.watch, Told)
    assert found.watch.log == expected.watch.log


def assert_nothing_waited_for(twin: Twin, lanes: Sequence[Lane], exports: Sequence[tuple[int, int]]) -> None:
    """On a GPU: a step of windows and runs asks the device for nothing."""
    told = tuple(Export(lane, EXPORTS + i, line) for i, (lane, line) in enumerate(exports))
    compiled, step = (on_device(make_step(lanes, exports=told)) for _ in range(2))
    tokens = sum(lane.count for lane in lanes)
    inputs = {name: x.to(DEVICE) for name, x in twin.draw(tokens, 1, "mild").items()}
    pool = filled_pool(twin, lanes, 2, torch.float32, "mild", GRID)
    out = torch.empty(tokens, *twin.output, device=DEVICE)
    twin.advance(inputs, pool, compiled, out)
    torch.cuda.set_sync_debug_mode("error")
    try:
        twin.advance(inputs, pool, step, out)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _reference(rule: Recurrence) -> Callable[[Inputs, TemporalState, StateStep, Tensor], Tensor]:
    return lambda inputs, pool, step, out: journal.advance(rule, inputs, pool, step, out, exact=False)


def _run(
    advance: Callable[[dict[str, Tensor], TemporalState, StateStep, Tensor], object],
    inputs: dict[str, Tensor],
    pool: TemporalState,
    step: StateStep,
    shape: tuple[int, ...],
) -> tuple[Tensor, TemporalState]:
    copy = TemporalState(
        pool.saved.clone(), {name: ring.clone() for name, ring in pool.journal.items()}, watch=Told()
    )
    tokens = len(next(iter(inputs.values())))
    out = torch.full((tokens, *shape), torch.nan, device=DEVICE)
    advance(inputs, copy, on_device(step), out)
    return out, copy


def windows_at(window: int, seed: int, grid: int = GRID) -> list[Lane]:
    """Cold, in the middle, about to fold, crossing a line, short, empty, and padding."""
    draws = seeded(seed)
    lanes = [Lane(row=1, count=window, run=False)]
    for row, length in enumerate((min(3, grid - 1), grid - 1, grid, grid + WINDOW - 1), start=2):
        base = grid * int(torch.randint(0, 5, (), generator=draws))
        lanes.append(Lane(row=row, count=window, position=base + length, base=base, slot=row, run=False))
    lanes.append(Lane(row=0, count=0))
    shorter = max(window - 1, 0)
    lanes.append(Lane(row=6, count=shorter, position=grid + grid // 2, base=grid, slot=6, run=False))
    lanes.append(Lane(row=7, count=0, position=2 * grid, base=grid, slot=7))
    return lanes


RUNS = [
    Lane(row=1, count=2, position=5),
    Lane(row=2, count=150),
    Lane(row=3, count=5, position=GRID + 3, base=GRID, slot=3),
    Lane(row=0, count=0, run=True),
    Lane(row=4, count=70, position=60 + GRID, base=48, slot=4),
    Lane(row=5, count=64, position=128, base=128, slot=5),
]
"""A window, then runs: cold, short, padding, about to fold with much to follow, and from block to block."""

EXPORTED = [(1, 64), (1, 128), (4, 64), (4, 128), (4, 144), (5, 192)]
"""Of these, lines at which states are exported: at blocks' ends, and in a run's tail."""

BLOCKS = [Lane(row=1, count=70 + GRID), Lane(row=2, count=64, position=128, base=128, slot=2)]
"""Runs of which the reference, too, rounds nothing between blocks' ends and the last line."""
