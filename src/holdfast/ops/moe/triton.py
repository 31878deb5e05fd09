"""The kernels of a mixture of experts, launched: how they are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from . import kernels
from .reference import Routing

SORTED_AT_ONCE = 1024
"""Pairs that a program looks at in one go; always as many, so that there is one kernel to compile."""
MIXED_AT_ONCE = 1024
"""Channels of a program that adds up."""


@dataclass(frozen=True)
class Tiles:
    """Of a product: rows and outputs of a program, and inputs that it reads at a time."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


TILES = {
    8: Tiles(16, 32, 128, warps=4, stages=4),
    48: Tiles(64, 64, 64, warps=4, stages=4),
}
"""For at most so many rows per expert, on average; the first is bound by the bytes of weights alone."""
MANY_ROWS = Tiles(128, 128, 64, warps=8, stages=3)


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """As the reference's; of equal experts, the first is chosen."""
    tokens, chosen = len(logits), routing.chosen
    experts = torch.empty(tokens, chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(tokens, chosen, dtype=torch.float32, device=logits.device)
    if tokens:
        kernels.route[(tokens,)](
            logits,
            logits if bias is None else bias,
            experts,
            weights,
            logits.stride(0),
            routing.eps,
            routing.scale,
            E=routing.experts,
            CHOSEN=chosen,
            GROUPS=routing.groups,
            OPEN=routing.chosen_groups,
            SIGMOID=routing.score == "sigmoid",
            BIASED=bias is not None,
            NORMALISED=routing.normalised,
            BE=triton.next_power_of_2(routing.experts),
            BC=triton.next_power_of_2(chosen),
            BG=triton.next_power_of_2(routing.groups),
            num_warps=1,
        )
    return experts, weights


def experts(x: Tensor, experts: Tensor, weights: Tensor, up: Tensor, down: Tensor, *, gated: bool) -> Tensor:
    """As `Ops.experts`.

    x                 [tokens, width]
    experts, weights  [tokens, chosen]
    up, down          [experts, inner, width] or twice as many outputs if gated, [experts, width, inner]
    """
    tokens, width = x.shape
    if not tokens:
        return x
    count, _, inner = down.shape
    chosen = experts.shape[1]
    pairs = tokens * chosen
    order, begins = sort(experts, count)
    opened, said = (torch.empty(pairs, size, dtype=x.dtype, device=x.device) for size in (inner, width))
    tiles = tiles_for(pairs / count)
    _product(x, up, opened, experts, order, begins, tiles, up=True, gated=gated)
    _product(opened, down, said, experts, order, begins, tiles, up=False, gated=False)
    out = torch.empty(tokens, width, dtype=x.dtype, device=x.device)
    block = min(MIXED_AT_ONCE, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, block)
    kernels.mix[(tokens, blocks)](said, weights, out, WIDTH=width, CHOSEN=chosen, BW=block)
    return out


def sort(experts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Pairs by expert [pairs], in their order; where those of each expert begin [count + 1], the last one's end."""
    pairs = experts.numel()
    order = torch.empty(pairs, dtype=torch.int32, device=experts.device)
    begins = torch.empty(count + 1, dtype=torch.int32, device=experts.device)
    kernels.sort[(count + 1,)](experts, order, begins, pairs, BP=SORTED_AT_ONCE)
    return order, begins


def tiles_for(rows: float) -> Tiles:
    """rows: of an expert, on average"""
    return next((tiles for most, tiles in TILES.items() if rows <= most), MANY_ROWS)


def _product(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    experts: Tensor,
    order: Tensor,
    begins: Tensor,
    tiles: Tiles,
    *,
    up: bool,
    gated: bool,
) -> None:
    pairs, outputs = out.shape
    count = len(weight)
    if gated and tiles.outputs > 64:
        tiles = replace(tiles, outputs=tiles.outputs // 2)  # it holds two sums
    # twice the turns that equal shares would need: what an expert has beyond that, its programs take one by one
    turns = min(triton.cdiv(pairs, tiles.rows), 2 * triton.cdiv(pairs, count * tiles.rows))
    by_pair = pairs <= count
    grid = (triton.cdiv(outputs, tiles.outputs), pairs if by_pair else count, 1 if by_pair else turns)
    kernels.product[grid](
        x,
        weight,
        out,
        experts,
        order,
        begins,
        x.stride(0),
        weight.stride(0),
        weight.stride(1),
        N=outputs,
        K=x.shape[1],
        CHOSEN=experts.shape[1],
        UP=up,
        GATED=gated,
        BY_PAIR=by_pair,
        BM=tiles.rows,
        BN=tiles.outputs,
        BK=tiles.inputs,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
