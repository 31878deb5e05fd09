"""Causal depthwise convolution over a ring of raw inputs, in plain torch.

    y[t] = bias + sum_j weight[:, j] * x[t - (width - 1) + j]

An input before the sequence is zero; one before the checkpoint's position comes from the checkpoint's slot;
the others come from the row's ring or from this step's own tokens.
"""

from __future__ import annotations

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
        _windows(x, weight, pool, step.lanes(0, step.num_windows), out)
    for lane in range(step.num_windows, len(step.rows)):
        if int(step.rows[lane]):
            _run(x, weight, pool, step.lanes(lane, lane + 1), out)
    return out if bias is None else out + bias.float()


def _windows(x: Tensor, weight: Tensor, pool: ConvState, step: StateStep, out: Tensor) -> None:
    width = weight.shape[1]
    real = step.rows > 0
    earlier = _inputs_before(pool, step, step.position, width)
    folds = ((step.end_base > step.base) & real).nonzero().flatten()
    pool.saved[step.write_slot[folds]] = _inputs_before(pool, step, step.end_base, width)[folds]

    tokens = torch.arange(step.longest_window, device=x.device)
    valid = (tokens < step.counts[:, None]) & real[:, None]
    flat = torch.where(valid, step.offsets[:-1, None] + tokens, 0)
    known = torch.cat((earlier, x[flat]), 1)
    if step.tree is None:
        source = (tokens[:, None] + torch.arange(width, device=x.device)).expand(len(step.rows), -1, -1)
    else:
        source = step.tree.sources(width) + width - 1
    lanes = torch.arange(len(step.rows), device=x.device)[:, None]
    result = torch.zeros(known.shape[0], len(tokens), x.shape[1], device=x.device)
    for j in range(width):
        result = result + known[lanes, source[..., j]].float() * weight[:, j].float()
    out[flat[valid]] = result[valid]
    lane, token = valid.nonzero(as_tuple=True)
    pool.ring[step.rows[lane], (step.position[lane] + token) % pool.ring.shape[1]] = x[flat[lane, token]]


def _run(x: Tensor, weight: Tensor, pool: ConvState, step: StateStep, out: Tensor) -> None:
    width, capacity = weight.shape[1], pool.ring.shape[1]
    first, count, position = int(step.offsets[0]), int(step.counts), int(step.position)
    known = torch.cat((_inputs_before(pool, step, step.position, width)[0], x[first : first + count]))
    result = torch.zeros(count, x.shape[1], device=x.device)
    for j in range(width):
        result = result + known[j : j + count].float() * weight[:, j].float()
    out[first : first + count] = result

    lines = [(int(step.end_base), int(step.write_slot))] if int(step.end_base) > int(step.base) else []
    for line, slot in lines + [(e.line, e.slot) for e in step.exports]:
        if line >= position:  # known begins at position - (width - 1)
            pool.saved[slot] = known[line - position : line - position + width - 1]
        else:
            at = torch.full_like(step.position, line)
            pool.saved[slot] = _inputs_before(pool, step, at, width)[0]
    kept = torch.arange(max(0, count - capacity), count, device=x.device)
    pool.ring[step.rows, (position + kept) % capacity] = x[first + kept]


def _inputs_before(pool: ConvState, step: StateStep, position: Tensor, width: int) -> Tensor:
    """[B, width - 1, channels]: the inputs just before each lane's `position`, as they stand before this step."""
    wanted = position[:, None] + torch.arange(1 - width, 0, device=position.device)
    saved = pool.saved[step.read_slot[:, None], (wanted - step.base[:, None] + width - 1).clamp(0, width - 2)]
    recent = pool.ring[step.rows[:, None], wanted.clamp(min=0) % pool.ring.shape[1]]
    found = torch.where((wanted < step.base[:, None])[..., None], saved, recent)
    return torch.where(((wanted >= 0) & (step.rows > 0)[:, None])[..., None], found, 0)
