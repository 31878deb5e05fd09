"""Causal depthwise convolution over a ring of raw inputs, in plain torch.

    y[t] = bias + sum_j weight[:, j] * x[t - (width - 1) + j]

An input before the sequence is zero; one before the checkpoint's position comes from the checkpoint's slot;
the others come from the row's ring or from this step's own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..places import Cells, Checkpoints, ConvState
from ..step import StateStep, Windows


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep) -> Tensor:
    """Convolve the step's tokens and keep what later steps need.

    x       [tokens, channels]  flat over the batch
    weight  [channels, width]
    returns [tokens, channels] in float32, NaN where no real lane has a token
    Ring: this step's inputs. Slots: the inputs before each line that is folded or exported.
    """
    result = _windows(x, weight, pool, step) if step.num_windows else None
    if result is not None and result.shape[:2].numel() == len(x) and step.windows.full:
        out = result.flatten(0, 1)  # nobody else is there
    else:
        out = torch.full(x.shape, torch.nan, device=x.device)
        if result is not None:
            step.windows.put(out, result)
    for lane in range(step.num_windows, len(step.rows)):
        if step.host[lane][0]:
            _run(x, weight, pool, step.lane(lane), out)
    return out if bias is None else out + bias.float()


def keep(x: Tensor, pool: ConvState, step: StateStep) -> None:
    """What `causal_conv` keeps of a step of windows; nothing is convolved."""
    _keep_windows(pool, step.windows, step.windows.take(x))


def _windows(x: Tensor, weight: Tensor, pool: ConvState, step: StateStep) -> Tensor:
    width = weight.shape[1]
    windows = step.windows
    step = windows.step
    before, fresh = _inputs_before(pool, _before(pool, step, "position")), windows.take(x)
    if step.tree is None and fresh.shape[1] == 1:
        result = _sum_of_taps((*before.float().split(1, 1), fresh.float()), weight)
    elif step.tree is None:
        result = _convolve(torch.cat((before, fresh), 1), weight, fresh.shape[1])
    else:
        known = torch.cat((before, fresh), 1)
        source = step.once(("sources", width), lambda: _tree_sources(step, width))
        lanes = torch.arange(len(step.rows), device=x.device)[:, None]
        taps = (known[lanes, source[..., j]].float() * weight[:, j].float() for j in range(width))
        result = sum(taps, torch.zeros((), device=x.device))
    _keep_windows(pool, windows, fresh)
    return result


def _keep_windows(pool: ConvState, windows: Windows, fresh: Tensor) -> None:
    if len(windows.folding):
        line = _before(pool, windows.step, "end_base", windows.folding)
        pool.store(windows.fold_to, _inputs_before(pool, line))
    pool.append(_window_cells(windows, pool.ring.shape[1]), windows.existing_of(fresh))


def _window_cells(windows: Windows, capacity: int) -> Cells:
    step, (lane, token) = windows.step, windows.existing
    return step.once(
        ("ring", capacity), lambda: _cells(step.rows[lane], step.position[lane] + token, capacity)
    )


def _convolve(known: Tensor, weight: Tensor, count: int) -> Tensor:
    """known [.., width - 1 + count, channels] -> [.., count, channels]"""
    known = known.float()
    return _sum_of_taps([known[..., j : j + count, :] for j in range(weight.shape[1])], weight)


def _sum_of_taps(inputs: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Of what each tap meets, [.., channels]; in a fixed order."""
    first, *taps = weight.t().float().contiguous().unbind()
    result = inputs[0] * first
    for met, tap in zip(inputs[1:], taps, strict=True):
        result.addcmul_(met, tap)
    return result


def _tree_sources(step: StateStep, width: int) -> Tensor:
    assert step.tree is not None
    return step.tree.sources(width) + width - 1


def _run(x: Tensor, weight: Tensor, pool: ConvState, step: StateStep, out: Tensor) -> None:
    width, capacity = weight.shape[1], pool.ring.shape[1]
    first, count, position = int(step.offsets[0]), int(step.counts), int(step.position)
    known = torch.cat((_inputs_before(pool, _before(pool, step, "position"))[0], x[first : first + count]))
    out[first : first + count] = _convolve(known, weight, count)

    if int(step.end_base) > int(step.base):
        line = int(step.end_base)
        # known begins width - 1 before the position; a line further back was passed by the window before
        if line >= position:
            before = known[line - position : line - position + width - 1]
        else:
            before = _inputs_before(pool, _before(pool, step, "end_base"))[0]
        pool.store(step.fold_to, before)
    for export, to in zip(step.exports, step.export_to, strict=True):
        pool.store(to, known[export.line - position : export.line - position + width - 1])
    kept = max(0, count - capacity)
    cells = step.once(
        ("ring", capacity), lambda: _run_cells(step, position + kept, position + count, capacity)
    )
    pool.append(cells, x[first + kept : first + count])


def _run_cells(step: StateStep, begin: int, end: int, capacity: int) -> Cells:
    position = torch.arange(begin, end, device=step.rows.device)
    return _cells(step.rows.expand_as(position), position, capacity)


def _cells(rows: Tensor, position: Tensor, capacity: int) -> Cells:
    return Cells(rows, position, 1, rows * capacity + position % capacity)


@dataclass(frozen=True)
class _Before:
    """Where the width - 1 inputs before a position are: in the ring, in the slot, or before the sequence.

    ring   those that are there, zeros for the others
    moved  [m]: which of them are in slots;  saved  [m]: which of a slot's each is
    """

    ring: Cells
    slots: Checkpoints
    moved: Tensor
    saved: Tensor


def _locate(step: StateStep, lanes: Tensor, position: Tensor, width: int, capacity: int) -> _Before:
    rows, slots, base = step.rows[lanes], step.read_slot[lanes], step.base[lanes]
    first = position[lanes] - (width - 1)
    wanted = first[:, None] + torch.arange(width - 1, device=position.device)
    exists = (wanted >= 0) & (rows > 0)[:, None]
    in_slot = exists & (wanted < base[:, None])
    lane, place = in_slot.nonzero(as_tuple=True)
    empty = (in_slot | ~exists).flatten().nonzero().flatten()
    where = rows[:, None] * capacity + wanted.clamp(min=0) % capacity
    return _Before(
        ring=Cells(rows, first, width - 1, where.flatten(), empty if len(empty) else None),
        slots=Checkpoints(rows[lane], slots[lane], base[lane]),
        moved=lane * (width - 1) + place,
        saved=wanted[lane, place] - base[lane] + width - 1,
    )


def _before(pool: ConvState, step: StateStep, cursor: str, lanes: Tensor | None = None) -> _Before:
    """What is before that cursor of all lanes, or of some."""
    width, capacity = pool.saved.shape[1] + 1, pool.ring.shape[1]

    def locate() -> _Before:
        chosen = torch.arange(len(step.rows), device=step.rows.device) if lanes is None else lanes
        return _locate(step, chosen, getattr(step, cursor), width, capacity)

    return step.once((cursor, width, capacity), locate)


def _inputs_before(pool: ConvState, at: _Before) -> Tensor:
    """[lanes, width - 1, channels], as they stand before this step."""
    found = pool.read(at.ring)
    if len(at.moved):
        found.flatten(0, 1).index_copy_(0, at.moved, pool.load(at.slots, at.saved))
    return found
