"""Where every row stands, on the device: read when a step begins, moved once when it ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cursors:
    """One value per row; row 0 is padding and stays as it is."""

    own_slot: Tensor
    read_slot: Tensor
    base: Tensor
    length: Tensor
    grant_slot: Tensor
    grant_line: Tensor


@dataclass(frozen=True)
class Standing:
    """Per lane, as in StateStep."""

    position: Tensor
    base: Tensor
    read_slot: Tensor
    end_base: Tensor
    write_slot: Tensor


@dataclass(frozen=True)
class Committed:
    """Per lane: where the row and its checkpoint stand now, and what became of its grant."""

    position: Tensor
    base: Tensor
    used: Tensor
    missed: Tensor


def begin(at: Cursors, rows: Tensor, counts: Tensor, *, num_windows: int, grid: int) -> Standing:
    """Where each lane stands and which fold it will make; lanes before `num_windows` are windows."""
    base, length = at.base[rows], at.length[rows]
    position = base + length
    window = torch.arange(len(rows), device=rows.device) < num_windows
    after_window = base + grid * (length >= grid)
    after_run = (position + counts) // grid * grid
    end_base = torch.where(rows > 0, torch.where(window, after_window, after_run), base)
    return Standing(
        position=position,
        base=base,
        read_slot=at.read_slot[rows],
        end_base=end_base,
        write_slot=torch.where(_granted(at, rows, end_base), at.grant_slot[rows], at.own_slot[rows]),
    )


def commit(at: Cursors, rows: Tensor, stood: Standing, accepted: Tensor) -> Committed:
    """Move every cursor of the step, once: `accepted` [B] of each lane's tokens are certain now."""
    real, folded = rows > 0, stood.end_base > stood.base
    grant_slot, grant_line = at.grant_slot[rows], at.grant_line[rows]
    passed = (grant_slot > 0) & (grant_line <= stood.end_base)
    position = stood.position + torch.where(real, accepted, 0)
    used = passed & folded & (grant_line == stood.end_base)

    def move(cursor: Tensor, value: Tensor) -> None:
        cursor[rows] = torch.where(real, value, cursor[rows])

    move(at.read_slot, torch.where(folded, stood.write_slot, stood.read_slot))
    move(at.base, stood.end_base)
    move(at.length, position - stood.end_base)
    move(at.grant_slot, torch.where(passed, 0, grant_slot))
    move(at.grant_line, torch.where(passed, 0, grant_line))
    return Committed(position=position, base=stood.end_base, used=used, missed=passed & ~used)


def _granted(at: Cursors, rows: Tensor, line: Tensor) -> Tensor:
    return (at.grant_slot[rows] > 0) & (at.grant_line[rows] == line)


def absorbed(
    table: Tensor, rows: Tensor, counts: Tensor, position: Tensor, lane: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token of the flat batch [tokens]: its row, 0 if there is none; its position; and which it is.

    table [rows, positions]; lane, offset [tokens]: whose each token is, and which of theirs. Counts may be smaller.
    """
    row = torch.where(offset < counts[lane], rows[lane], 0)
    where = position[lane] + offset
    return row, where, table[row, where]
