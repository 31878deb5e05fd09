"""Journal kernels beside the ways that other engines keep recurrent state, on one GPU.

    python benchmarks/journal_kernels.py [--json FILE] [--quick]

One gated delta layer of 16 key heads and 32 value heads of 128 x 128. Medians under graph replay; inputs and
states rotate through more memory than the L2 holds; every timed configuration is first checked against float64;
lanes stand at every length of the journal, so that folds come at their true rate.

  read-modify-write  reads the whole state and writes it back, every token
  snapshots          writes one whole state per draft token, then scatters the accepted one back
  journal            reads the checkpoint, appends entries, writes a checkpoint once in J tokens
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.config import journal_capacity
from holdfast.ops.gated_delta import triton as kernels
from holdfast.ops.places import TemporalState
from holdfast.ops.step import StateStep

H, HV, K, V = 16, 32, 128, 128
ROTATE_BYTES = 256 << 20
STATED = {  # microseconds; a baseline slower than 1.05 times this is no baseline
    ("read-modify-write", 1, 256): 290,
    ("read-modify-write", 1, 128): 146,
    ("snapshots", 4, 128): 532,
    ("snapshots", 4, 32): 138,
    ("snapshots", 8, 32): 220,
}


# --- the peers' ways ---------------------------------------------------------------------------------------


@triton.jit
def _recurrent(
    qk, v, log_g, beta, out, saved, snapshots, slots,
    T: tl.constexpr, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
    SNAPSHOTS: tl.constexpr,
):  # fmt: skip
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channels, values = tl.arange(0, K), block * BV + tl.arange(0, BV)
    key_head = head // (HV // H)
    tile = channels[:, None] * V + values
    home = saved + (tl.load(slots + lane).to(tl.int64) * HV + head) * K * V + tile
    state = tl.load(home).to(tl.float32)
    for t in tl.static_range(T):
        token = lane.to(tl.int64) * T + t
        query = tl.load(qk + (token * 2 * H + key_head) * K + channels).to(tl.float32)
        key = tl.load(qk + ((token * 2 + 1) * H + key_head) * K + channels).to(tl.float32)
        value = tl.load(v + (token * HV + head) * V + values).to(tl.float32)
        state *= tl.exp(tl.load(log_g + token * HV + head))
        add = tl.load(beta + token * HV + head) * (value - tl.sum(state * key[:, None], 0))
        state += key[:, None] * add[None, :]
        tl.store(out + (token * HV + head) * V + values, tl.sum(state * query[:, None], 0))
        if SNAPSHOTS:
            tl.store(snapshots + (token * HV + head) * K * V + tile, state.to(saved.dtype.element_ty))
    if not SNAPSHOTS:
        tl.store(home, state.to(saved.dtype.element_ty))


@triton.jit
def _scatter(saved, snapshots, slots, accepted, T: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    block, lane = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    last = lane.to(tl.int64) * T + tl.load(accepted + lane) - 1
    state = tl.load(snapshots + last * SIZE + at)
    tl.store(saved + tl.load(slots + lane).to(tl.int64) * SIZE + at, state)


@triton.jit
def _read(saved, slots, sums, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    block, lane = tl.program_id(0), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(saved + tl.load(slots + lane).to(tl.int64) * SIZE + at)
    if tl.sum(state.to(tl.float32)) == 1234567.0:  # never, but the loads must happen
        tl.store(sums, 1.0)


# --- one problem -------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """`copies` sets of rows and slots, so that consecutive launches find nothing in the L2."""

    batch: int
    window: int
    grid: int
    copies: int
    inputs: dict[str, Tensor]
    pool: TemporalState
    steps: list[StateStep]
    out: Tensor
    scratch: kernels.Scratch
    snapshots: Tensor
    accepted: Tensor


def make(batch: int, window: int, grid: int, dtype: torch.dtype, *, snapshots: bool, copies: int) -> Problem:
    device, tokens = torch.device("cuda"), batch * window

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    def unit(x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=-1)

    qk = unit(normal(tokens, 2, H, K)).bfloat16()
    inputs = {
        "qk": qk,
        "q": qk[:, 0],
        "k": qk[:, 1],
        "v": normal(tokens, HV, V).bfloat16(),
        "log_g": -0.1 * torch.rand(tokens, HV, device=device),
        "beta": torch.rand(tokens, HV, device=device),
    }
    lanes, capacity = batch * copies, journal_capacity(grid, window)
    pool = TemporalState(
        saved=torch.empty(lanes + 1, HV, K, V, dtype=dtype, device=device),
        journal={
            "k": unit(normal(lanes + 1, capacity, H, K)).bfloat16(),
            "u": normal(lanes + 1, capacity, HV, V),
            "log_g": -0.1 * torch.rand(lanes + 1, capacity, HV, device=device),
        },
    )
    for slot in range(lanes + 1):
        pool.saved[slot] = normal(HV, K, V).to(dtype)
    return Problem(
        batch=batch,
        window=window,
        grid=grid,
        copies=copies,
        inputs=inputs,
        pool=pool,
        steps=[_step(batch, window, grid, 1 + i * batch) for i in range(copies)],
        out=torch.full((tokens, HV, V), torch.nan, device=device),
        scratch=kernels.Scratch.allocate(batch, HV, window, grid, device),
        snapshots=torch.empty(tokens if snapshots else 0, HV, K, V, dtype=dtype, device=device),
        accepted=torch.arange(batch, device=device) % window + 1,
    )


def _step(batch: int, window: int, grid: int, first: int) -> StateStep:
    """All tokens were accepted before, so a lane begins at window .. grid + window - 1 entries, evenly."""
    device = torch.device("cuda")
    rows = torch.arange(first, first + batch, device=device)
    length = window + torch.randperm(batch, device=device) % grid
    base = torch.full((batch,), 8 * grid, device=device)
    return StateStep(
        rows=rows,
        counts=torch.full((batch,), window, device=device),
        offsets=torch.arange(0, batch * window + 1, window, device=device),
        position=base + length,
        base=base,
        read_slot=rows,
        end_base=base + grid * (length >= grid),
        write_slot=rows,
        num_windows=batch,
        longest_window=window,
        grid=grid,
    )


Way = Callable[[Problem, StateStep], None]


def journal_way(tiles: kernels.Tiles) -> Way:
    def run(p: Problem, step: StateStep) -> None:
        x = p.inputs
        kernels.windows(
            x["qk"], x["v"], x["log_g"], x["beta"], p.pool, step, p.out,
            scale=1.0, scratch=p.scratch, tiles=tiles,
        )  # fmt: skip

    return run


def rewrite_way(tiles: kernels.Tiles, *, snapshots: bool) -> Way:
    def run(p: Problem, step: StateStep) -> None:
        x = p.inputs
        _recurrent[(V // tiles.values, HV, p.batch)](
            x["qk"], x["v"], x["log_g"], x["beta"], p.out, p.pool.saved, p.snapshots, step.read_slot,
            T=p.window, H=H, HV=HV, K=K, V=V, BV=tiles.values, SNAPSHOTS=snapshots, num_warps=tiles.warps,
        )  # fmt: skip
        if snapshots:
            block = 4096
            _scatter[(HV * K * V // block, p.batch)](
                p.pool.saved, p.snapshots, step.read_slot, p.accepted, T=p.window, SIZE=HV * K * V, BLOCK=block,
                num_warps=8,
            )  # fmt: skip

    return run


def read_way(p: Problem, step: StateStep) -> None:
    _read[(HV * K * V // 8192, p.batch)](
        p.pool.saved, step.read_slot, p.out, SIZE=HV * K * V, BLOCK=8192, num_warps=8
    )


# --- right, then fast --------------------------------------------------------------------------------------


def definition(p: Problem, step: StateStep, *, journal: bool) -> tuple[Tensor, Tensor]:
    """float64, token by token: outputs, and the state at each lane's end_base (or after all tokens)."""
    group = HV // H
    state = p.pool.saved[step.read_slot].double()
    end = state.clone()

    def absorb(state: Tensor, k: Tensor, u: Tensor, log_g: Tensor) -> Tensor:
        k = k.double().repeat_interleave(group, 1)
        return log_g.double().exp()[..., None, None] * state + k[..., :, None] * u.double()[..., None, :]

    if journal:
        held = (step.position - step.base).tolist()
        for i in range(max(held)):
            place = (step.base + i) % p.pool.capacity
            k, u, g = (p.pool.journal[name][step.rows, place] for name in ("k", "u", "log_g"))
            active = (step.base + i < step.position)[:, None, None, None]
            state = torch.where(active, absorb(state, k, u, g), state)
            at_line = ((step.base + i + 1 == step.end_base) & active.flatten())[:, None, None, None]
            if p.pool.saved.dtype is not torch.float64:
                state = torch.where(at_line, state.to(p.pool.saved.dtype).double(), state)
            end = torch.where(at_line, state, end)
    outputs = []
    x = {name: value.unflatten(0, (p.batch, p.window)) for name, value in p.inputs.items()}
    for t in range(p.window):
        q, k = (x[name][:, t].double().repeat_interleave(group, 1) for name in "qk")
        decayed = x["log_g"][:, t].double().exp()[..., None, None] * state
        recalled = (decayed * k[..., None]).sum(2)
        u = x["beta"][:, t].double()[..., None] * (x["v"][:, t].double() - recalled)
        state = decayed + k[..., None] * u[..., None, :]
        outputs.append((state * q[..., None]).sum(2))
    return torch.stack(outputs, 1).flatten(0, 1), end if journal else state


def error(p: Problem, way: Way, *, journal: bool) -> float:
    step = p.steps[0]
    wanted, state = definition(p, step, journal=journal)
    kept = p.pool.saved[step.rows].clone()
    p.out.fill_(torch.nan)
    way(p, step)
    torch.cuda.synchronize()
    worst = float((p.out.double() - wanted).norm() / wanted.norm())
    if not p.snapshots.numel():
        stored = p.pool.saved[step.rows].double()
        worst = max(worst, float((stored - state).norm() / state.norm()))
    p.pool.saved[step.rows] = kept
    return worst


def microseconds(p: Problem, way: Way, budget: float = 0.15) -> float:
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


TILES = [
    kernels.Tiles(values, warps) for values, warps in ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4))
]


def fastest(p: Problem, make_way: Callable[[kernels.Tiles], Way], tiles: list[kernels.Tiles]) -> Any:
    timed = [(microseconds(p, make_way(tile), budget=0.03), tile) for tile in tiles]
    best = min(timed, key=lambda pair: pair[0])
    return microseconds(p, make_way(best[1])), best[1], timed


def copies_for(batch: int, dtype: torch.dtype) -> int:
    size = batch * HV * K * V * torch.finfo(dtype).bits // 8
    return max(1, min(64, -(-ROTATE_BYTES // size)))


def cases(quick: bool) -> Iterator[tuple[int, int, torch.dtype]]:
    yield from ((1, 256, torch.float32), (1, 128, torch.float32))
    yield from ((4, 128, torch.float32), (4, 32, torch.float32), (8, 32, torch.float32))
    if not quick:
        yield from ((1, batch, torch.float32) for batch in (1, 2, 4, 8, 32))
        yield from ((1, 256, torch.bfloat16), (4, 128, torch.bfloat16))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--quick", action="store_true", help="only the configurations with stated baselines")
    parser.add_argument("--sweep", action="store_true", help="print every tile that was tried")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here, and these kernels are measured on nothing else.")
        return
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    rows = []
    for window, batch, dtype in cases(args.quick):
        copies = copies_for(batch, dtype)
        name = "read-modify-write" if window == 1 else "snapshots"
        p = make(batch, window, 16, dtype, snapshots=window > 1, copies=copies)
        rewrite = partial(rewrite_way, snapshots=window > 1)
        base_error = error(p, rewrite(kernels.DEFAULT_TILES), journal=False)
        base, base_tiles, swept = fastest(p, rewrite, TILES)
        read = microseconds(p, read_way)
        p.snapshots = p.snapshots[:0]
        for grid in (8, 16):
            if grid < window:
                continue
            j = p if grid == p.grid else make(batch, window, grid, dtype, snapshots=False, copies=copies)
            journal_error = error(j, journal_way(kernels.DEFAULT_TILES), journal=True)
            own, tiles, own_swept = fastest(j, journal_way, TILES)
            row = {
                "window": window, "batch": batch, "state": str(dtype).removeprefix("torch."), "J": grid,
                "against": name, "base_us": base, "journal_us": own, "ratio": base / own, "read_us": read,
                "base_error": base_error, "journal_error": journal_error,
                "base_tiles": [base_tiles.values, base_tiles.warps], "tiles": [tiles.values, tiles.warps],
            }  # fmt: skip
            rows.append(row)
            if args.sweep:
                print(
                    "   base ",
                    [(f"{us:.0f}", t.values, t.warps) for us, t in sorted(swept, key=lambda x: x[0])[:6]],
                )
                print(
                    "   own  ",
                    [(f"{us:.0f}", t.values, t.warps) for us, t in sorted(own_swept, key=lambda x: x[0])[:6]],
                )
        del p, j
        torch.cuda.empty_cache()
    print(
        f"{'T':>2} {'batch':>5} {'state':8} {'J':>2} {'base us':>8} {'journal':>8} {'ratio':>6} {'read':>7}  errors"
    )
    slow = []
    for r in rows:
        print(
            f"{r['window']:2} {r['batch']:5} {r['state']:8} {r['J']:2} {r['base_us']:8.1f} {r['journal_us']:8.1f} "
            f"{r['ratio']:6.2f} {r['read_us']:7.1f}  {r['base_error']:.1e} {r['journal_error']:.1e} "
            f"{r['base_tiles']} {r['tiles']}"
        )
        stated = STATED.get((r["against"], r["window"], r["batch"])) if r["state"] == "float32" else None
        if stated and r["base_us"] > 1.05 * stated:
            slow.append(
                f"{r['against']} T={r['window']} batch {r['batch']}: {r['base_us']:.0f} us, stated {stated}"
            )
        if max(r["base_error"], r["journal_error"]) > (1e-5 if r["state"] == "float32" else 1e-2):
            slow.append(f"wrong: {r}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    if slow:
        raise SystemExit("not a fair comparison:\n  " + "\n  ".join(slow))


if __name__ == "__main__":
    main()
