"""Paged attention's kernels, launched: what is stored, how a step is cut, and what the watch is told.

Nothing here waits for the device. Grids follow from lanes, tokens, the longest window and the page table's
width, so a recorded graph holds for whatever lengths its lanes come to have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from ..places import KVState
from ..step import StateStep
from ..twins.launch import early
from . import kernels
from .heads import HeadNorms
from .reference import contexts, kv_places

LEAST = 16
"""No matrix product is narrower."""
LEAST_SPLIT = 64
"""Tokens of context below which another program costs more than it saves; whole tiles of any size."""
MOST_SPLITS = 64
WINDOWS_PER_SM = 4
"""Programs that hide one another's waits for keys and values."""
WINDOW_REGISTERS = 128
"""Of a thread, if the rows are as few as can be. The compiler takes more where it may, and needs 96 to 116."""
RUNS_PER_SM = 1
"""Programs that leave the matrix units no pause."""
STORED_AT_ONCE = 1024
"""Elements of a program that stores."""


@dataclass(frozen=True)
class Tiles:
    """rows: (token, query head of the group) of a program; context: tokens that it reads at a time."""

    rows: int
    context: int
    warps: int
    stages: int


WINDOW_TILES = {
    64: Tiles(64, 128, warps=4, stages=3),
    128: Tiles(64, 64, warps=4, stages=3),
    256: Tiles(64, 32, warps=4, stages=3),
    512: Tiles(32, 32, warps=8, stages=3),
}
"""By the padded width of a head, for two bytes an element. `rows` is the most; a window takes what it needs.

A tile's pages must be known before its keys are asked for, which takes a stage. So of three one tile is on its way,
32 KiB, while another is worked on, and WINDOWS_PER_SM programs fit on an SM if registers allow it."""

RUN_TILES = {
    64: Tiles(128, 64, warps=4, stages=3),
    128: Tiles(128, 64, warps=8, stages=3),
    256: Tiles(128, 32, warps=8, stages=2),
    512: Tiles(64, 32, warps=8, stages=2),
}
"""Within 255 registers, but for latents, which spill a little."""


def prepare(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    pool: KVState,
    pages: Tensor,
    step: StateStep,
    *,
    norm: HeadNorms | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Norm and turn queries and keys, store keys and values in their pages; returns the queries.

    queries  [tokens, QH, D], keys [tokens, KH, D], values [tokens, KH, DV]: views of any strides but the last
    rotary   cos, sin [positions, half]: the table, not a token's lines of it
    out      where queries go; not written for tokens of padding
    """
    _tell_of_writes(pool, pages, step)
    out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device) if out is None else out
    _store(queries, keys, values, out, pool, pages, step, norm, rotary)
    return out


def write_kv(keys: Tensor, values: Tensor, pool: KVState, pages: Tensor, step: StateStep) -> None:
    """As the reference's."""
    _tell_of_writes(pool, pages, step)
    none = keys[:, :0]
    _store(none, keys, values, none, pool, pages, step, None, None)


def paged_attention(
    queries: Tensor,
    pool: KVState,
    pages: Tensor,
    step: StateStep,
    scale: float,
    *,
    value_dim: int | None = None,
    out: Tensor | None = None,
    splits: int | None = None,
) -> Tensor:
    """As the reference's, which leaves NaN where no real lane has a token: `out` is not written there.

    splits  of every lane's context; None: enough to occupy the device
    """
    _tell_of_reads(pool, pages, step)
    width = pool.values.shape[-1] if value_dim is None else value_dim
    if out is None:
        out = torch.empty(*queries.shape[:-1], width, dtype=queries.dtype, device=queries.device)
    shape = Shape.of(queries, pool, pages, width, latent=value_dim is not None)
    call = Call(queries, out, pool, pages, step, scale, shape, splits)
    if step.num_windows and step.longest_window:
        _attend_windows(call)
    if len(step.rows) > step.num_windows:
        _attend_runs(call)
    return out


def run_work(step: StateStep, tokens: int, size: int) -> Tensor:
    """[2, programs]: lane and first token of every `size` tokens of a run; the last first, as they see most.

    Lanes and tokens bound how many there are, so nobody is asked. What is left over begins beyond the end of a lane.
    """
    return step.once(("run work", tokens, size), lambda: _run_work(step, tokens, size))


def split_count(programs: int, longest: int, wanted: int) -> int:
    """Into how many parts to cut contexts of at most `longest` tokens, each read by one of `programs`, to have as
    many as are wanted."""
    return max(1, min(wanted // programs, MOST_SPLITS, triton.cdiv(longest, LEAST_SPLIT)))


@dataclass(frozen=True)
class Shape:
    heads: int
    group: int
    key_dim: int
    value_dim: int
    page: int
    longest: int
    """Tokens that a row of the page table can hold."""
    itemsize: int
    latent: bool

    @staticmethod
    def of(queries: Tensor, pool: KVState, pages: Tensor, value_dim: int, *, latent: bool) -> Shape:
        _, page, heads, key_dim = pool.keys.shape
        longest = pages.shape[1] * page
        group = queries.shape[1] // heads
        return Shape(heads, group, key_dim, value_dim, page, longest, queries.element_size(), latent)

    @property
    def widths(self) -> dict[str, int]:
        """What tiles of keys, of what is left of keys that hold values, and of values are padded to."""
        value = padded(self.value_dim)
        rest = self.key_dim - self.value_dim if self.latent else 0
        return {
            "BD": value if self.latent else padded(self.key_dim),
            "BR": padded(rest) if rest else 0,
            "BV": value,
        }

    def tiles(self, table: dict[int, Tiles], rows: int) -> Tiles:
        """For `rows` at most, if one program should take them. Wider elements need more registers and more bytes."""
        width = max(self.widths["BD"], self.widths["BV"])
        found = table[min(max(width, min(table)), max(table))]
        wider = max(1, self.itemsize // 2)
        most = min(found.rows // wider**2, padded(rows))
        context = max(LEAST, found.context // wider)
        most = max(most, padded(self.group))
        warps = 8 if most * width >= 64 * 256 else found.warps
        return Tiles(most, context, warps, found.stages)


def padded(size: int) -> int:
    return max(LEAST, triton.next_power_of_2(size))


@dataclass(frozen=True)
class Call:
    """What a step's windows and its runs are asked together."""

    queries: Tensor
    out: Tensor
    pool: KVState
    pages: Tensor
    step: StateStep
    scale: float
    shape: Shape
    splits: int | None


def _attend_windows(call: Call) -> None:
    step, group = call.step, call.shape.group
    tiles = call.shape.tiles(WINDOW_TILES, group * step.longest_window)
    blocks = triton.cdiv(step.longest_window, tiles.rows // group)
    tree = None if step.tree is None else step.tree.ancestors.contiguous()
    _attend(call, tiles, step.num_windows * blocks, blocks=blocks, tree=tree)


def _attend_runs(call: Call) -> None:
    tokens, group = len(call.queries), call.shape.group
    tiles = call.shape.tiles(RUN_TILES, group * tokens)
    work = run_work(call.step, tokens, tiles.rows // group)
    _attend(call, tiles, work.shape[1], work=work)


def _attend(
    call: Call,
    tiles: Tiles,
    programs: int,
    *,
    work: Tensor | None = None,
    blocks: int = 1,
    tree: Tensor | None = None,
) -> None:
    """`work` for runs; `blocks` of every window, and `tree`, for windows."""
    queries, out, pool, pages, step, shape = (
        call.queries, call.out, call.pool, call.pages, call.step, call.shape,
    )  # fmt: skip
    wanted = _processors(queries.device) * (WINDOWS_PER_SM if work is None else RUNS_PER_SM)
    splits = call.splits or split_count(programs * shape.heads, shape.longest, wanted)
    partial = lse = out  # not written if there is one split
    if splits > 1:
        parts = (programs, shape.heads, splits, tiles.rows)
        partial = torch.empty(*parts, shape.value_dim, dtype=torch.float32, device=queries.device)
        lse = torch.empty(parts, dtype=torch.float32, device=queries.device)
    values = pool.keys if shape.latent else pool.values
    cursors = (step.rows, step.counts, step.offsets, step.position)
    listed = step.rows if work is None else work
    widths = shape.widths
    cut: dict[str, Any] = {
        "G": shape.group,
        "DV": shape.value_dim,
        "BV": widths["BV"],
        "BM": tiles.rows,
        "BN": tiles.context,
        "BLOCKS": blocks,
        "LEAST": max(LEAST_SPLIT, tiles.context),
        "RUNS": work is not None,
        **early(queries.device),
    }
    kernels.attend[(shape.heads, splits, programs)](
        queries,
        out,
        pool.keys,
        values,
        pages,
        partial,
        lse,
        listed,
        step.rows if tree is None else tree.view(torch.uint8),
        *cursors,
        *queries.stride()[:2],
        *pool.keys.stride()[:3],
        *values.stride()[:3],
        pages.stride(0),
        0 if tree is None else tree.shape[-1],
        call.scale * math.log2(math.e),
        **cut,
        D=shape.key_dim,
        PAGE=shape.page,
        BD=widths["BD"],
        BR=widths["BR"],
        SPLIT=splits > 1,
        TREE=tree is not None,
        LATENT=shape.latent,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        maxnreg=WINDOW_REGISTERS if tiles.rows == LEAST else None,
    )
    if splits > 1:
        tokens = min(tiles.rows // shape.group, step.longest_window if work is None else tiles.rows)
        joined = (tokens * shape.group, shape.heads, programs)
        kernels.join[joined](partial, lse, out, listed, *cursors, splits, **cut, SOME=8, num_warps=2)


def _store(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    pool: KVState,
    pages: Tensor,
    step: StateStep,
    norm: HeadNorms | None,
    rotary: tuple[Tensor, Tensor] | None,
) -> None:
    tokens, key_heads, dim = keys.shape
    if not tokens:
        return
    query_heads, value_dim = queries.shape[1], values.shape[-1]
    width = padded(max(dim, value_dim))
    block = max(1, min(STORED_AT_ONCE // width, triton.next_power_of_2(max(query_heads, key_heads))))
    blocks = triton.cdiv(query_heads, block) + triton.cdiv(key_heads, block)
    kernels.store[(tokens, blocks)](
        queries,
        keys,
        values,
        out,
        *pool,
        *((keys, keys) if norm is None else (norm.queries, norm.keys)),
        *((keys, keys) if rotary is None else rotary),
        *step.places_of(tokens),
        pages,
        0.0 if norm is None else norm.eps,
        *queries.stride()[:2],
        *keys.stride()[:2],
        *values.stride()[:2],
        *pool.keys.stride()[:3],
        *pool.values.stride()[:3],
        pages.stride(0),
        QH=query_heads,
        KH=key_heads,
        D=dim,
        DV=value_dim,
        HALF=0 if rotary is None else rotary[0].shape[-1],
        NORM=norm is not None,
        ZERO_CENTRED=norm is not None and norm.zero_centred,
        PAGE=pool.page_size,
        BH=block,
        BD=padded(dim),
        BV=padded(value_dim),
        num_warps=4 if block * width > 512 else 2,
        **early(queries.device),
    )


def _run_work(step: StateStep, tokens: int, size: int) -> Tensor:
    counts = step.counts[step.num_windows :]
    blocks = (counts + size - 1) // size
    ends = blocks.cumsum(0)
    number = torch.arange(triton.cdiv(tokens, size) + len(counts) - 1, -1, -1, device=counts.device)
    lane = torch.searchsorted(ends, number, right=True).clamp_(max=len(counts) - 1)
    first = (number - (ends - blocks)[lane]) * size
    return torch.stack((lane + step.num_windows, first))


def _tell_of_writes(pool: KVState, pages: Tensor, step: StateStep) -> None:
    if pool.watch is not None and step.uniform:
        pool.watch.used(step.whole(pages))  # reads and all
    elif pool.watch is not None:
        _, places = step.once("kv places", lambda: kv_places(pages, pool.page_size, step))
        pool.watch.wrote(places)


def _tell_of_reads(pool: KVState, pages: Tensor, step: StateStep) -> None:
    if pool.watch is not None and not step.uniform:
        held = step.once("contexts", lambda: contexts(pages, pool.page_size, step))
        for context, (row, count, _, _) in zip(held, step.host, strict=True):
            if row and count:
                pool.watch.read(context)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
