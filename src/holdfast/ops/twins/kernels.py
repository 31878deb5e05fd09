"""Parts of kernels: how one follows another, places in a ring, products at float32 accuracy, tokens that lie in the
journal or are given, journals' tails."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def follow(EARLY: tl.constexpr):
    """In a kernel that is launched before the one in front of it has ended: wait for that end, let the next one in.

    In this order, so that a kernel begins when the last but one before it has ended. What it may do ahead of this
    line: read what the kernel in front of it does not write. Every program must come here: a kernel that ends
    without having waited would let the next ones pass.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


PIECES = tl.constexpr(32)
"""Of folds, no program takes more if others can."""


@triton.jit
def fold_workers(pieces, few):
    """How many of a launch's programs are to fold: few, so that others can run beside, unless pieces are many."""
    return tl.minimum(tl.maximum(tl.cdiv(pieces, PIECES), few), tl.num_programs(0))


BEYOND = tl.constexpr(1 << 30)
"""No window goes so far: where the next line is to one that stops at none."""


@triton.jit
def sees(tree, size, lane, nodes, others, real):
    """Of a window that branches: whether each of these nodes sees each of the others. tree [windows, size, size]"""
    return tl.load(tree + (lane.to(tl.int64) * size + nodes) * size + others, mask=real, other=0) != 0


@triton.jit
def list_folds(rows, base, end_base, folds, lanes, LP: tl.constexpr):
    """folds [1 + lanes]: how many lanes fold, and which."""
    every = tl.arange(0, LP)
    real = every < lanes
    begins, ends = tl.load(base + every, mask=real, other=0), tl.load(end_base + every, mask=real, other=0)
    folding = ((tl.load(rows + every, mask=real, other=0) > 0) & (ends > begins)).to(tl.int32)
    tl.store(folds + tl.cumsum(folding), every, mask=folding > 0)
    tl.store(folds, tl.sum(folding))


@triton.jit
def back(at, COUNT: tl.constexpr, CAP: tl.constexpr):
    """[COUNT]: where the entries before `at` lie in a ring of CAP places, the newest first; of no use are those of
    positions below 0."""
    return (((at - 1) % CAP).to(tl.int32) - tl.arange(0, COUNT) + COUNT * CAP) % CAP


@triton.jit
def side_by_side(COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """arange(0, COUNT), of which the compiler knows only that so many lie side by side: no thread takes more of what
    is loaded by it, however few bytes that is."""
    every = tl.arange(0, COUNT)
    return every // WIDTH * WIDTH + every % WIDTH


@triton.jit
def product(a, b):
    """a @ b to float32 accuracy, on matrix units.

    Beside bfloat16, a float32 operand is split into three bfloat16 parts: every product is exact, only sums round.
    """
    if a.dtype == tl.bfloat16:
        if b.dtype == tl.bfloat16:
            return tl.dot(a, b)
        else:
            high, middle, low = _parts(b.to(tl.float32))
            return tl.dot(a, high, tl.dot(a, middle, tl.dot(a, low)))
    elif b.dtype == tl.bfloat16:
        high, middle, low = _parts(a.to(tl.float32))
        return tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="tf32x3")


@triton.jit
def _parts(x):
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def either(ring, given, tokens, at, first, ring_stride, given_stride, wanted, CAP: tl.constexpr):
    """Of the tokens at these positions: those before `at` are in the journal, the others among what is given, from
    `first` on. Zero where not wanted.

    ring, given  pointers to the columns of a row's place 0, and of the batch's token 0
    """
    held = tokens < at
    old = tl.load(ring + (tokens % CAP) * ring_stride, mask=wanted & held, other=0.0)
    new = tl.load(given + (first + tokens - at) * given_stride, mask=wanted & ~held, other=0.0)
    return tl.where(held, old, new.to(old.dtype))


@triton.jit
def piece(ring, given, nth, low, at, first, ring_stride, given_stride, wanted, CAP: tl.constexpr):
    """As `either`, of the tokens low + nth: all but the first pieces of a run are given as a whole."""
    given += (first + low - at) * given_stride
    if low < at:
        held = nth < (at - low).to(tl.int32)
        place = ((low % CAP).to(tl.int32) + nth) % CAP
        old = tl.load(ring + place * ring_stride, mask=wanted & held, other=0.0)
        new = tl.load(given + nth * given_stride, mask=wanted & ~held, other=0.0)
        found = tl.where(held, old, new.to(old.dtype))
    else:
        found = tl.load(given + nth * given_stride, mask=wanted, other=0.0).to(ring.dtype.element_ty)
    return found


@triton.jit
def append_tail(
    ring, given,  # [rows, CAP, WIDTH], [tokens, WIDTH]
    rows, counts, offsets, position, end_base,
    given_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Of runs: what is given of the tokens since their last line goes to the journal."""
    block, place, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(rows + lane).to(tl.int64), tl.load(counts + lane)
    first, at = tl.load(offsets + lane).to(tl.int64), tl.load(position + lane)
    token = tl.load(end_base + lane) + place
    columns = block * BLOCK + tl.arange(0, BLOCK)
    wanted = (row > 0) & (token >= at) & (token < at + count) & (columns < WIDTH)
    value = tl.load(given + (first + token - at) * given_stride + columns, mask=wanted, other=0.0)
    tl.store(ring + (row * CAP + token % CAP) * WIDTH + columns, value, mask=wanted)
