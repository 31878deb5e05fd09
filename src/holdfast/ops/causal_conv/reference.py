"""Causal depthwise convolution over a ring of raw inputs, in plain torch.

    y[t] = bias + sum_j weight[:, j] * x[t - (width - 1) + j]

An input before the sequence is zero; one before the checkpoint's position comes from the checkpoint's slot;
the others come from the row's ring or from this step's own tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..step import ConvState, StateStep


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, pool: ConvState, step: StateStep) -> Tensor:
    """Convolve the step's tokens and keep what later steps need.

    x       [tokens, channels]  flat over the batch
    weight  [channels, width]
    returns [tokens, channels] in float32, NaN where no real lane has a token
    Ring: this step's inputs. Slots: the inputs before each line that is folded or exported.
    """
    out = torch.full(x.shape, torch.nan, device=x.device)
    if step.num_windows:
        _windows(x, weight, pool, step, out)
    for lane in range(step.num_windows, len(step.rows)):
        if step.host[lane][0]:
            _run(x, weight, pool, step.lane(lane), out)
    return out if bias is None else out + bias.float()


def _windows(x: Tensor, weight: Tensor, pool: ConvState, step: StateStep, out: Tensor) -> None:
    width = weight.shape[1]
    windows = step.windows
    step = windows.step
    known = torch.cat((_inputs_before(pool, step, "position", width), windows.take(x)), 1)
    if len(windows.folding):
        lanes = windows.folding
        pool.saved[step.write_slot[lanes]] = _inputs_before(pool, step, "end_base", width)[lanes]
    if step.tree is None:
        result = _convolve(known, weight, len(windows.tokens))
    else:
        source = step.once(("sources", width), lambda: _tree_sources(step, width))
        lanes = torch.arange(len(step.rows), device=x.device)[:, None]
        taps = (known[lanes, source[..., j]].float() * weight[:, j].float() for j in range(width))
        result = sum(taps, torch.zeros((), device=x.device))
    windows.put(out, result)
    lane, token = windows.existing
    rows, places = step.once(
        ("ring", pool.ring.shape[1]),
        lambda: (step.rows[lane], (step.position[lane] + token) % pool.ring.shape[1]),
    )
    pool.ring[rows, places] = windows.take(x)[lane, token]


def _convolve(known: Tensor, weight: Tensor, count: int) -> Tensor:
    """known [.., width - 1 + count, channels] -> [.., count, channels], tap by tap in a fixed order."""
    known, taps = known.float(), weight.t().float()
    result = known[..., :count, :] * taps[0]
    for j in range(1, len(taps)):
        result += known[..., j : j + count, :] * taps[j]
    return result


def _tree_sources(step: StateStep, width: int) -> Tensor:
    assert step.tree is not None
    return step.tree.sources(width) + width - 1


def _run(x: Tensor, weight: Tensor, pool: ConvState, step: StateStep, out: Tensor) -> None:
    width, capacity = weight.shape[1], pool.ring.shape[1]
    first, count, position = int(step.offsets[0]), int(step.counts), int(step.position)
    known = torch.cat((_inputs_before(pool, step, "position", width)[0], x[first : first + count]))
    out[first : first + count] = _convolve(known, weight, count)

    if int(step.end_base) > int(step.base):
        line = int(step.end_base)
        # known begins width - 1 before the position; a line further back was passed by the window before
        if line >= position:
            before = known[line - position : line - position + width - 1]
        else:
            before = _inputs_before(pool, step, "end_base", width)[0]
        pool.saved[int(step.write_slot)] = before
    for export in step.exports:
        pool.saved[export.slot] = known[export.line - position : export.line - position + width - 1]
    kept = torch.arange(max(0, count - capacity), count, device=x.device)
    pool.ring[step.rows, (position + kept) % capacity] = x[first + kept]


@dataclass(frozen=True)
class _Before:
    """Where the width - 1 inputs before a position are: in the slot, in the ring, or before the sequence."""

    slots: Tensor
    saved: Tensor
    in_slot: Tensor
    ring: Tensor
    """[B * (width - 1)]: in the rings, whose rows are laid end to end."""
    exists: Tensor
    any_in_slot: bool
    all_exist: bool


def _locate(step: StateStep, position: Tensor, width: int, capacity: int) -> _Before:
    wanted = position[:, None] + torch.arange(1 - width, 0, device=position.device)
    in_slot = ((wanted < step.base[:, None]) & (wanted >= 0))[..., None]
    exists = ((wanted >= 0) & (step.rows > 0)[:, None])[..., None]
    return _Before(
        slots=step.read_slot[:, None],
        saved=(wanted - step.base[:, None] + width - 1).clamp(0, width - 2),
        in_slot=in_slot,
        ring=(step.rows[:, None] * capacity + wanted.clamp(min=0) % capacity).flatten(),
        exists=exists,
        any_in_slot=bool(in_slot.any()),
        all_exist=bool(exists.all()),
    )


def _inputs_before(pool: ConvState, step: StateStep, cursor: str, width: int) -> Tensor:
    """[B, width - 1, channels]: the inputs before each lane's `cursor`, as they stand before this step."""
    capacity = pool.ring.shape[1]
    at = step.once((cursor, width), lambda: _locate(step, getattr(step, cursor), width, capacity))
    found = pool.ring.flatten(0, 1).index_select(0, at.ring).unflatten(0, at.saved.shape)
    if at.any_in_slot:
        found = torch.where(at.in_slot, pool.saved[at.slots, at.saved], found)
    return found if at.all_exist else torch.where(at.exists, found, 0)
