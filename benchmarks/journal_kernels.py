"""Journal kernels beside the ways that other engines keep recurrent state, on one GPU.

    python benchmarks/journal_kernels.py [decode] [few] [narrow] [verify] [lines] [--states int8] [--sweep]

One gated delta layer of 16 key heads and 32 value heads of 128 x 128. Medians under graph replay; inputs and
states rotate through more memory than the L2 holds; every timed configuration is first checked against float64;
lanes stand at every length of the journal, so that folds come at their true rate.

  decode   single tokens, the rule alone, against read-modify-write
  few      one to eight lanes, convolution, norms and gates included on both sides
  narrow   checkpoints in bfloat16 against the same rewritten; of one byte against float32 rewritten
  verify   windows of drafts against snapshots and a scatter
  lines    journals of other lengths J, single tokens and windows; with J = 1 every token rewrites the state

--sweep times other tiles and other cuts of folds, --launches each launch by itself, --json FILE keeps the figures.
The run fails if a baseline is slower than 1.05 times what is stated for it, or if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

import rewriting
from holdfast.config import journal_capacity, ring_capacity
from holdfast.ops.gated_delta import triton as kernels
from holdfast.ops.gated_delta.front import DeltaInputs, DeltaWeights
from holdfast.ops.places import ConvState, TemporalState
from holdfast.ops.rounding import GREATEST, narrowed, rounded, widened
from holdfast.ops.step import StateStep
from holdfast.ops.twins.launch import FoldTiles

H, HV, K, V, WIDTH = 16, 32, 128, 128, 4
CHANNELS = 2 * H * K + HV * V
EPS = 1e-6
GRID = 16
ROTATE_BYTES = 256 << 20
STATED = {  # microseconds; a baseline slower than 1.05 times this is no baseline
    ("read-modify-write", 1, 256): 290,
    ("read-modify-write", 1, 128): 146,
    ("snapshots", 4, 128): 532,
    ("snapshots", 4, 32): 138,
    ("snapshots", 8, 32): 220,
}
DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Case:
    """least: how many times as fast as the other way the journal must be;  grid: J"""

    part: str
    window: int
    batch: int
    dtype: torch.dtype
    least: float
    grid: int = GRID

    @property
    def against(self) -> str:
        return "layer" if self.part == "few" else "read-modify-write" if self.window == 1 else "snapshots"

    @property
    def base_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype in GREATEST else self.dtype


CASES = [
    *(Case("decode", 1, batch, torch.float32, 1.5) for batch in (256, 128)),
    *(Case("few", 1, batch, torch.float32, 0.95) for batch in (1, 2, 4, 8)),
    Case("narrow", 1, 256, torch.bfloat16, 1.25),
    Case("narrow", 1, 256, torch.int8, 3.0),
    Case("narrow", 1, 256, torch.float8_e4m3fn, 3.0),
    *(
        Case("verify", window, batch, torch.float32, 2.2)
        for window, batch in ((4, 128), (4, 32), (8, 32), (16, 32))
    ),
    *(Case("lines", 1, 256, torch.float32, 0.0, grid) for grid in (1, 8, 32)),
    *(Case("lines", 4, 128, torch.float32, 0.0, grid) for grid in (8, 32)),
]


# --- one problem -------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """`copies` sets of rows and slots, so that consecutive launches find nothing in the L2."""

    batch: int
    window: int
    copies: int
    inputs: dict[str, Tensor]
    pool: TemporalState
    steps: list[StateStep]
    out: Tensor
    snapshots: Tensor
    accepted: Tensor
    layer: Layer | None = None


@dataclass
class Layer:
    """What stands before the rule: projections, weights; and what the convolution keeps, in either way."""

    inputs: DeltaInputs
    weights: DeltaWeights
    conv: ConvState
    kept: Tensor
    mixed: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mixed = torch.empty_like(self.inputs.qkv, memory_format=torch.contiguous_format)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


def make(case: Case, dtype: torch.dtype, grid: int, *, snapshots: bool) -> Problem:
    batch, window = case.batch, case.window
    tokens, copies = batch * window, copies_for(batch * HV * K * V * dtype.itemsize)
    qk = unit(normal(tokens, 2, H, K)).bfloat16()
    inputs = {
        "qk": qk,
        "q": qk[:, 0],
        "k": qk[:, 1],
        "v": normal(tokens, HV, V).bfloat16(),
        "log_g": -0.1 * torch.rand(tokens, HV, device=DEVICE),
        "beta": torch.rand(tokens, HV, device=DEVICE),
    }
    lanes, capacity = batch * copies, journal_capacity(grid, window)
    pool = TemporalState(
        saved=torch.empty(lanes + 1, HV, K, V, dtype=dtype, device=DEVICE),
        journal={
            "k": unit(normal(lanes + 1, capacity, H, K)).bfloat16(),
            "u": normal(lanes + 1, capacity, HV, V),
            "log_g": -0.1 * torch.rand(lanes + 1, capacity, HV, device=DEVICE),
        },
        scale=torch.empty(lanes + 1, HV, 1, V, dtype=torch.bfloat16, device=DEVICE)
        if dtype in GREATEST
        else None,
    )
    for slot in range(lanes + 1):
        keep(pool, torch.tensor([slot], device=DEVICE), normal(1, HV, K, V))
    steps = [_step(batch, window, grid, 1 + i * batch) for i in range(copies)]
    return Problem(
        batch=batch,
        window=window,
        copies=copies,
        inputs=inputs,
        pool=pool,
        steps=steps,
        out=torch.full((tokens, HV, V), torch.nan, device=DEVICE),
        snapshots=torch.empty(tokens if snapshots else 0, HV, K, V, dtype=dtype, device=DEVICE),
        accepted=torch.arange(batch, device=DEVICE) % window + 1,
        layer=make_layer(lanes, batch, steps) if case.part == "few" else None,
    )


def make_layer(lanes: int, batch: int, steps: list[StateStep]) -> Layer:
    capacity = ring_capacity(WIDTH, 1)
    conv = ConvState(
        saved=normal(lanes + 1, WIDTH - 1, CHANNELS).bfloat16(),
        ring=normal(lanes + 1, capacity, CHANNELS).bfloat16(),
    )
    kept = torch.zeros_like(conv.saved)
    for step in steps:
        before = step.position[:, None] + torch.arange(1 - WIDTH, 0, device=DEVICE)
        from_ring = conv.ring[step.rows[:, None], before % capacity]
        nth = (before - step.base[:, None] + WIDTH - 1).clamp(max=WIDTH - 2)
        from_slot = conv.saved[step.read_slot[:, None], nth]
        kept[step.rows] = torch.where((before >= step.base[:, None])[..., None], from_ring, from_slot)
    wide = normal(batch, CHANNELS + 2 * HV).bfloat16()
    return Layer(
        DeltaInputs(*wide.split((CHANNELS, HV, HV), -1)),
        DeltaWeights(0.5 * normal(CHANNELS, WIDTH).bfloat16(), normal(HV) - 3, normal(HV), 1.0),
        conv,
        kept,
    )


def _step(batch: int, window: int, grid: int, first: int) -> StateStep:
    """All tokens were accepted before, so a lane begins at window .. grid + window - 1 entries, evenly."""
    rows = torch.arange(first, first + batch, device=DEVICE)
    length = window + (first - 1 + torch.randperm(batch, device=DEVICE)) % grid
    base = torch.full((batch,), 8 * grid, device=DEVICE)
    return StateStep(
        rows=rows,
        counts=torch.full((batch,), window, device=DEVICE),
        offsets=torch.arange(0, batch * window + 1, window, device=DEVICE),
        position=base + length,
        base=base,
        read_slot=rows,
        end_base=base + grid * (length >= grid),
        write_slot=rows,
        num_windows=batch,
        longest_window=window,
        grid=grid,
    )


def copies_for(nbytes: int) -> int:
    return max(1, min(64, -(-ROTATE_BYTES // nbytes)))


def held(pool: TemporalState, slots: Tensor) -> Tensor:
    """Checkpoints in float64."""
    saved = pool.saved[slots]
    return (saved if pool.scale is None else widened(saved, pool.scale[slots])).double()


def keep(pool: TemporalState, slots: Tensor, states: Tensor) -> None:
    if pool.scale is None:
        pool.saved[slots] = states.to(pool.saved.dtype)
    else:
        pool.saved[slots], pool.scale[slots] = narrowed(states, pool.saved.dtype, axis=2)


# --- the ways ----------------------------------------------------------------------------------------------

Way = Callable[[Problem, StateStep], None]


def journal_way(tiles: kernels.Tiles | None = None) -> Way:
    def run(p: Problem, step: StateStep) -> None:
        x = p.inputs
        if p.layer is not None:
            kernels.decode(
                p.layer.inputs, p.layer.weights, p.layer.conv, p.pool, step, p.out, eps=EPS, tiles=tiles
            )
        else:
            kernels.windows(
                x["qk"], x["v"], x["log_g"], x["beta"], p.pool, step, p.out, scale=1.0, tiles=tiles
            )

    return run


def rewrite_way(tiles: kernels.Tiles) -> Way:
    def run(p: Problem, step: StateStep) -> None:
        x, snapshots = p.inputs, p.snapshots.numel() > 0
        rewriting.recurrent[(V // tiles.values, HV, p.batch)](
            x["qk"], x["v"], x["log_g"], x["beta"], p.out, p.pool.saved, p.snapshots, step.read_slot,
            T=p.window, H=H, HV=HV, K=K, V=V, BV=tiles.values, SNAPSHOTS=snapshots, num_warps=tiles.warps,
        )  # fmt: skip
        if snapshots:
            block = 4096
            rewriting.scatter[(HV * K * V // block, p.batch)](
                p.pool.saved, p.snapshots, step.read_slot, p.accepted, T=p.window, SIZE=HV * K * V, BLOCK=block,
                num_warps=8,
            )  # fmt: skip

    return run


def layer_way(tiles: kernels.Tiles) -> Way:
    def run(p: Problem, step: StateStep) -> None:
        assert p.layer is not None
        x, w, mixed = p.layer.inputs, p.layer.weights, p.layer.mixed
        rewriting.convolution[(triton.cdiv(CHANNELS, 256), p.batch)](
            x.qkv, w.conv, p.layer.kept, mixed, step.read_slot, x.qkv.stride(0),
            C=CHANNELS, W=WIDTH, BLOCK=256, num_warps=2,
        )  # fmt: skip
        rewriting.layer[(V // tiles.values, HV, p.batch)](
            mixed, x.a, x.b, w.a_log, w.dt_bias, p.out, p.pool.saved, step.read_slot,
            x.a.stride(0), x.b.stride(0), K**-0.5, EPS,
            H=H, HV=HV, K=K, V=V, BV=tiles.values, num_warps=tiles.warps,
        )  # fmt: skip

    return run


def read_way(p: Problem, step: StateStep) -> None:
    rewriting.read[(HV * K * V // 8192, p.batch)](
        p.pool.saved, step.read_slot, p.out, SIZE=HV * K * V, BLOCK=8192, num_warps=8
    )


# --- right, then fast --------------------------------------------------------------------------------------


def given(p: Problem, step: StateStep) -> dict[str, Tensor]:
    """What the rule is given, [lanes, window, ...] in float64; of a layer, worked out without any rounding."""
    if p.layer is None:
        return {name: x.unflatten(0, (p.batch, p.window)).double() for name, x in p.inputs.items()}
    x, w = p.layer.inputs, p.layer.weights
    rows = torch.cat((p.layer.kept[step.rows], x.qkv[:, None]), 1).double()
    mixed = F.silu((rows * w.conv.double().T).sum(1))
    q, k, v = mixed.split((H * K, H * K, HV * V), -1)
    q, k = (each.unflatten(-1, (H, K)) for each in (q, k))
    q, k = (each * (each.square().sum(-1, keepdim=True) + EPS).rsqrt() for each in (q, k))
    found = {
        "q": q * K**-0.5,
        "k": k,
        "v": v.unflatten(-1, (HV, V)),
        "log_g": -w.a_log.double().exp() * F.softplus(x.a.double() + w.dt_bias),
        "beta": x.b.double().sigmoid(),
    }
    return {name: each[:, None] for name, each in found.items()}


def definition(p: Problem, step: StateStep, *, journal: bool) -> tuple[Tensor, Tensor]:
    """float64, token by token: outputs, and the state at each lane's end_base (or after all tokens)."""
    group = HV // H
    state = held(p.pool, step.read_slot)
    end = state.clone()

    def absorb(state: Tensor, k: Tensor, u: Tensor, log_g: Tensor) -> Tensor:
        k = k.double().repeat_interleave(group, 1)
        return log_g.double().exp()[..., None, None] * state + k[..., :, None] * u.double()[..., None, :]

    if journal:
        for i in range(int((step.position - step.base).max())):
            place = (step.base + i) % p.pool.capacity
            k, u, g = (p.pool.journal[name][step.rows, place] for name in ("k", "u", "log_g"))
            active = (step.base + i < step.position)[:, None, None, None]
            state = torch.where(active, absorb(state, k, u, g), state)
            line = ((step.base + i + 1 == step.end_base) & active.flatten()).nonzero().flatten()
            if len(line):
                state[line] = rounded(state[line].float().mT, p.pool.saved.dtype).mT.double()
                end[line] = state[line]
    outputs = []
    x = given(p, step)
    for t in range(p.window):
        q, k = (x[name][:, t].repeat_interleave(group, 1) for name in "qk")
        decayed = x["log_g"][:, t].exp()[..., None, None] * state
        recalled = (decayed * k[..., None]).sum(2)
        u = x["beta"][:, t][..., None] * (x["v"][:, t] - recalled)
        state = decayed + k[..., None] * u[..., None, :]
        outputs.append((state * q[..., None]).sum(2))
    return torch.stack(outputs, 1).flatten(0, 1), end if journal else state


def error(p: Problem, way: Way, *, journal: bool) -> float:
    """Of outputs and states, relative; 1 if something was not written. The problem is as before."""
    step = p.steps[0]
    wanted, state = definition(p, step, journal=journal)
    kept = [x.clone() for x in _mutable(p)]
    p.out.fill_(torch.nan)
    way(p, step)
    torch.cuda.synchronize()
    off = float((p.out.double() - wanted).norm() / wanted.norm())
    if not p.snapshots.numel():
        off = max(off, float((held(p.pool, step.rows) - state).norm() / state.norm()))
    for x, before in zip(_mutable(p), kept, strict=True):
        x.copy_(before)
    return 1.0 if off != off else off


def _mutable(p: Problem) -> list[Tensor]:
    layer = [] if p.layer is None else [p.layer.conv.saved, p.layer.conv.ring, p.layer.kept]
    scale = [] if p.pool.scale is None else [p.pool.scale]
    return [p.pool.saved, *scale, *p.pool.journal.values(), *layer]


def microseconds(p: Any, way: Callable[[Any, StateStep], None], budget: float = 0.08) -> float:
    """p: anything with `steps`, and `copies` of them"""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        way(p, p.steps[0])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    launches = max(p.copies, min(32, 4 * p.copies))
    with torch.cuda.graph(graph):
        for i in range(launches):
            way(p, p.steps[i % p.copies])
    graph.replay()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < 7 or (sum(times) * launches / 1e6 < budget and len(times) < 200):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / launches)
    return statistics.median(times)


FOLD_CUTS: list[tuple[int, int, int, int | None]] = [
    (32, 4, 1, 128), (32, 4, 2, 128), (32, 2, 4, None), (32, 2, 8, None)
]  # fmt: skip
"""Other ways to cut folds: channels of a program, its warps, programs for every multiprocessor, registers."""
BASE_TILES = [kernels.Tiles(values, warps) for values, warps in ((8, 1), (16, 1), (32, 1), (64, 2))]


def baseline(case: Case) -> tuple[float, kernels.Tiles, float, float]:
    """Microseconds, the tiles, the error; and what it takes to read the states."""
    p = make(case, case.base_dtype, GRID, snapshots=case.window > 1)
    make_way = layer_way if case.part == "few" else rewrite_way
    tiles = BASE_TILES[:3] if case.part == "few" else BASE_TILES[1:]
    best = min(tiles, key=lambda tile: microseconds(p, make_way(tile), budget=0.02))
    return (
        microseconds(p, make_way(best)),
        best,
        error(p, make_way(best), journal=False),
        microseconds(p, read_way),
    )


def measure(case: Case) -> dict[str, Any]:
    base, base_tiles, base_error, read = baseline(case)
    torch.cuda.empty_cache()
    p = make(case, case.dtype, case.grid, snapshots=False)
    way = journal_way()
    off = error(p, way, journal=True)
    own = microseconds(p, way)
    return {
        "part": case.part, "window": case.window, "batch": case.batch, "state": _name(case.dtype), "J": case.grid,
        "against": case.against, "base_us": base, "journal_us": own, "ratio": base / own, "least": case.least,
        "read_us": read, "base_error": base_error, "journal_error": off,
        "base_tiles": [base_tiles.values, base_tiles.warps],
    }  # fmt: skip


def variants(case: Case) -> Iterator[tuple[str, kernels.Tiles | None]]:
    """Names of what is tried, and its tiles; what else it needs is set while it is timed."""
    tiles = kernels.Tiles
    if case.part == "lines":
        rewrite = kernels.REWRITE_TILES
        for cut in ((32, 2), (16, 1), (64, 2), (64, 4)) if case.grid == 1 else ():
            kernels.REWRITE_TILES = FoldTiles(*cut)
            yield f"folds {cut}", None
        kernels.REWRITE_TILES = rewrite
        return
    if case.part == "verify":
        for cut in ((32, 1, 32, 4), (64, 2, 32, 3), (64, 4, 32, 3), (64, 4, 64, 2), (32, 2, 64, 2)):
            yield f"tiles {cut}", tiles(*cut)
        return
    yield "as it is", None
    if case.part == "few":
        for values, warps in ((16, 1), (16, 2), (16, 4), (32, 2), (64, 4)):
            yield f"tiles {values} {warps}", tiles(values, warps)
        few, kernels.FEW_LANES = kernels.FEW_LANES, 0
        yield "three launches", None
        kernels.FEW_LANES = few
        return
    cuts = [(32, 1, 4), (32, 1, 8), (64, 2, 4), (64, 2, 8)]
    if case.dtype in GREATEST:
        cuts = [(64, 1, 8, 4, 8), (64, 1, 16, 4, 8), (64, 1, 8, 4, 16)]
    for cut in cuts:
        yield f"tiles {cut}", tiles(*cut)
    size, folds = case.dtype.itemsize, dict(kernels.FOLD_TILES)
    for cut in FOLD_CUTS:
        kernels.FOLD_TILES[size] = FoldTiles(*cut)
        yield f"folds {cut}", None
    kernels.FOLD_TILES.update(folds)


def sweep(case: Case) -> None:
    p = make(case, case.dtype, case.grid, snapshots=False)
    timed = []
    for name, tiles in variants(case):
        try:
            timed.append((microseconds(p, journal_way(tiles), budget=0.02), name))
        except (triton.runtime.errors.OutOfResources, triton.CompilationError):
            timed.append((float("inf"), name))
    if not timed:
        return
    print(f"{case.part} T={case.window} batch {case.batch} {_name(case.dtype)}: "
          + ", ".join(f"{name} {us:.1f}" for us, name in sorted(timed)), flush=True)  # fmt: skip


def launches(p: Any, way: Callable[[Any, StateStep], None]) -> None:
    """What each takes while others may run beside it. p: as for `microseconds`"""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for i in range(4):
            way(p, p.steps[i % p.copies])
        torch.cuda.synchronize()
    print("    " + ", ".join(
        f"{event.key} {event.device_time:.1f}" for event in profile.key_averages() if event.device_time > 1
    ), flush=True)  # fmt: skip


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def complaints(row: dict[str, Any]) -> Iterator[str]:
    stated = STATED.get((row["against"], row["window"], row["batch"]))
    if stated and row["state"] != "bfloat16" and row["base_us"] > 1.05 * stated:
        yield f"{row['against']} T={row['window']} batch {row['batch']}: {row['base_us']:.0f} us, stated {stated}"
    rounds = (
        row["part"] == "few" or row["state"] != "float32"
    )  # activations, or what is kept, to 8 bits or less
    if max(row["base_error"], row["journal_error"]) > (1e-2 if rounds else 1e-5):
        yield f"wrong: {row}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = list(dict.fromkeys(case.part for case in CASES))
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all if none is named")
    parser.add_argument("--states", help="of these dtypes only, such as float32,int8")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--sweep", action="store_true", help="try other tiles")
    parser.add_argument("--launches", action="store_true", help="time each launch")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here, and these kernels are measured on nothing else.")
        return
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    print(
        f"{'':6} {'T':>2} {'batch':>5} {'state':13} {'J':>2} {'base us':>8} {'journal':>8} {'ratio':>6} {'read':>7}"
        "  errors"
    )
    rows, wrong = [], []
    for case in CASES:
        named = not args.states or _name(case.dtype) in args.states.split(",")
        if not named or (args.parts and case.part not in args.parts):
            continue
        row = measure(case)
        rows.append(row)
        print(
            f"{case.part:6} {case.window:2} {case.batch:5} {row['state']:13} {case.grid:2} {row['base_us']:8.1f} "
            f"{row['journal_us']:8.1f} {row['ratio']:6.2f} {row['read_us']:7.1f}  {row['base_error']:.1e} "
            f"{row['journal_error']:.1e} {row['base_tiles']}" + "  BELOW" * (row["ratio"] < case.least),
            flush=True,
        )
        wrong += complaints(row)
        if args.sweep:
            sweep(case)
        if args.launches:
            launches(make(case, case.dtype, case.grid, snapshots=False), journal_way())
        torch.cuda.empty_cache()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    if wrong:
        sys.exit("not a fair comparison:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
