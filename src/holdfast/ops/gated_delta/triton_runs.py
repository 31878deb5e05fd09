"""The gated delta rule's kernels for runs, launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ...config import CHUNK
from ..places import TemporalState
from ..step import StateStep
from . import run_kernels as kernels
from .triton import scales_of

VALUES = {"tf32": 64, "tf32x3": 32}
"""Value channels of a program that goes along a run, by what its products are made in."""


@dataclass(frozen=True)
class Segments:
    """The runs of a step, cut at the lines of CHUNK tokens. There may be more entries than segments: those are empty.

    token, size   [bound]: where a segment begins in the flat batch, and how long it is
    first, count  [runs]: of each run, its first segment and how many it has
    """

    token: Tensor
    size: Tensor
    first: Tensor
    count: Tensor

    @staticmethod
    def of(step: StateStep, tokens: int) -> Segments:
        """Nothing is asked of the device: the bound is what the flat batch could hold."""
        cut = slice(step.num_windows, len(step.rows))
        at, counts = step.position[cut], torch.where(step.rows[cut] > 0, step.counts[cut], 0)
        runs = len(at)
        count = torch.where(counts > 0, (at + counts - 1) // CHUNK - at // CHUNK + 1, 0)
        ends = count.cumsum(0)
        number = torch.arange((tokens - step.num_window_tokens) // CHUNK + 2 * runs, device=at.device)
        run = torch.searchsorted(ends, number, right=True).clamp(max=runs - 1)
        block = at[run] // CHUNK + number - (ends - count)[run]
        begin = torch.maximum(block * CHUNK, at[run])
        end = torch.minimum((block + 1) * CHUNK, (at + counts)[run])
        return Segments(
            token=step.offsets[:-1][cut][run] + begin - at[run],
            size=torch.where(number < ends[-1], end - begin, 0),
            first=ends - count,
            count=count,
        )


def runs(
    qk: Tensor,
    v: Tensor,
    log_g: Tensor,
    beta: Tensor,
    pool: TemporalState,
    step: StateStep,
    out: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Absorb the step's runs; as `ops.journal.advance` does for GatedDelta, with queries that are scaled here.

    qk  [tokens, 2, H, K]; v [tokens, HV, V], whose heads lie side by side; log_g, beta [tokens, HV], contiguous
    """
    count = len(step.rows) - step.num_windows
    heads, key_dim = qk.shape[2:]
    value_heads, value_dim = v.shape[1:]
    segments = step.once("segments", lambda: Segments.of(step, len(qk)))
    bound, device = len(segments.size), v.device
    w = torch.empty(bound, value_heads, CHUNK, key_dim, device=device)
    u = torch.empty(bound, value_heads, CHUNK, value_dim, device=device)
    scores = torch.empty(bound, value_heads, CHUNK, CHUNK, device=device)
    precision = "tf32x3" if qk.dtype == torch.float32 else "tf32"
    values = VALUES[precision]
    shape: dict[str, Any] = {"H": heads, "GROUP": value_heads // heads, "K": key_dim}
    kernels.prepare[(bound, value_heads)](
        qk, v, log_g, beta, w, u, scores, segments.token, segments.size, v.stride(0), scale,
        **shape, V=value_dim, VP=max(16, triton.next_power_of_2(value_dim)), PRECISION=precision, num_warps=4,
    )  # fmt: skip
    cursors = (step.rows, step.counts, step.offsets, step.position)
    places = max(16, triton.next_power_of_2(step.grid))
    journal = {"JP": places, "CAP": pool.capacity}
    kernels.scan[(triton.cdiv(value_dim, values), value_heads, count)](
        qk, out, pool.saved, scales_of(pool), pool.journal["k"], pool.journal["u"], pool.journal["log_g"], log_g,
        w, u, scores, segments.first, segments.count, step.num_windows,
        *cursors, step.base, step.end_base, step.read_slot, step.write_slot,
        step.export_table if step.exports else step.rows, len(step.exports), scale,
        **shape, V=value_dim, BV=values, J=step.grid, **journal, PRECISION=precision, num_warps=4,
    )  # fmt: skip
    kernels.tail[(heads, count)](
        qk, log_g, pool.journal["k"], pool.journal["log_g"], step.num_windows,
        *cursors, step.end_base, **shape, **journal, num_warps=2,
    )  # fmt: skip
    return out
