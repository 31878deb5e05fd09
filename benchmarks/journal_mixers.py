"""Journal kernels of further mixers beside read-modify-write, on one GPU; and what they take for prompts.

    python benchmarks/journal_mixers.py [decode] [prompts] [--mixers ssd,kda] [--batches 256,128] [--sweep]

  ssd   Nemotron-H's layer: 128 heads of 64 channels x 128 states in 8 groups
  kda   Kimi-Linear's layer: 32 heads of 128 keys x 128 values

Measured as `journal_kernels.py` does: medians under graph replay, states rotate through more memory than the L2
holds, every timed way is checked against float64, folds come at their true rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import rewriting
from holdfast.config import journal_capacity
from holdfast.ops.kda import triton as kda
from holdfast.ops.places import TemporalState
from holdfast.ops.ssd import triton as ssd
from holdfast.ops.step import StateStep
from holdfast.ops.twins.launch import FoldTiles
from journal_kernels import FOLD_CUTS, _step, copies_for, launches, microseconds

DEVICE = torch.device("cuda")
CHECKED = 16
"""Lanes that are compared with float64."""
Tile = tuple[int, ...]
"""Channels of a program, and its warps; of a journal's also how many keys or states it takes at a time."""
TILES: list[Tile] = [(16, 1), (32, 1), (64, 2), (64, 4)]
PROMPT_TILES: list[Tile] = [(64, 4), (64, 8)]
GRID = 16

Values = dict[str, Tensor]


# --- the peers' way ----------------------------------------------------------------------------------------


@triton.jit
def _rewrite_ssd(
    x, b, c, dt, log_decay, out, saved, slots,
    H: tl.constexpr, G: tl.constexpr, P: tl.constexpr, S: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    states, channels = tl.arange(0, S), block * BP + tl.arange(0, BP)
    group = lane * G + head // (H // G)
    home = saved + (tl.load(slots + lane) * H + head) * S * P + states[:, None] * P + channels[None, :]
    state = tl.load(home).to(tl.float32)
    key = tl.load(b + group * S + states).to(tl.float32)
    query = tl.load(c + group * S + states).to(tl.float32)
    value = tl.load(x + (lane * H + head) * P + channels).to(tl.float32)
    added = (tl.load(dt + lane * H + head) * value)[None, :] * key[:, None]
    state = tl.exp(tl.load(log_decay + lane * H + head)) * state + added
    tl.store(out + (lane * H + head) * P + channels, tl.sum(state * query[:, None], 0))
    tl.store(home, state.to(saved.dtype.element_ty))


@triton.jit
def _rewrite_kda(
    q, k, v, log_g, beta, out, saved, slots,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    block, head, lane = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    channels, values = tl.arange(0, K), block * BV + tl.arange(0, BV)
    home = saved + (tl.load(slots + lane) * H + head) * K * V + channels[:, None] * V + values[None, :]
    mine = (lane * H + head) * K + channels
    state = tl.load(home).to(tl.float32)
    key, query = tl.load(k + mine).to(tl.float32), tl.load(q + mine).to(tl.float32)
    value = tl.load(v + (lane * H + head) * V + values).to(tl.float32)
    state *= tl.exp(tl.load(log_g + mine))[:, None]
    added = tl.load(beta + lane * H + head) * (value - tl.sum(state * key[:, None], 0))
    state += key[:, None] * added[None, :]
    tl.store(out + (lane * H + head) * V + values, tl.sum(state * query[:, None], 0))
    tl.store(home, state.to(saved.dtype.element_ty))


# --- the mixers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixer:
    """inputs   of so many tokens;  entries  of each field of the journal, the input that is as good as one
    state       shape of a checkpoint;  output  shape of a token's output;  width  its axis that tiles cut
    absorb      (state, token's inputs, is it an entry) -> state, output; in float64
    rewrite     (inputs, saved, slots, out, tile);  advance  (inputs, pool, step, out, tile), its own choice if none
    """

    name: str
    inputs: Callable[[int], Values]
    entries: dict[str, str]
    state: tuple[int, int, int]
    output: tuple[int, int]
    absorb: Callable[[Tensor, Values, bool], tuple[Tensor, Tensor]]
    rewrite: Callable[[Values, Tensor, Tensor, Tensor, Tile], None]
    advance: Callable[..., None]

    @property
    def width(self) -> int:
        return self.output[1]


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def _uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, device=DEVICE)


def _ssd(heads: int = 128, groups: int = 8, channels: int = 64, states: int = 128) -> Mixer:
    def inputs(tokens: int) -> Values:
        dt = _uniform(tokens, heads)
        return {
            "x": _normal(tokens, heads, channels).bfloat16(),
            "b": _normal(tokens, groups, states).bfloat16(),
            "c": _normal(tokens, groups, states).bfloat16(),
            "dt": dt,
            "log_decay": -0.1 * dt,
        }

    def absorb(state: Tensor, given: Values, entry: bool) -> tuple[Tensor, Tensor]:
        b, c = (given[name].repeat_interleave(heads // groups, 1) for name in "bc")
        written = given["dt"][..., None] * given["x"]
        state = given["log_decay"].exp()[..., None, None] * state + b[..., None] * written[:, :, None]
        return state, (state * c[..., None]).sum(2)

    def rewrite(given: Values, saved: Tensor, slots: Tensor, out: Tensor, tile: Tile) -> None:
        _rewrite_ssd[(channels // tile[0], heads, len(slots))](
            *given.values(), out, saved, slots,
            H=heads, G=groups, P=channels, S=states, BP=tile[0], num_warps=tile[1],
        )  # fmt: skip

    def advance(given: Values, pool: TemporalState, step: StateStep, out: Tensor, tile: Tile | None) -> None:
        tiles = (
            {} if tile is None else {"tiles": ssd.Tiles(*tile), "run_tiles": ssd.Tiles(*tile[:2], stages=1)}
        )
        ssd.advance(**given, pool=pool, step=step, out=out, **tiles)

    return Mixer(
        name="ssd",
        inputs=inputs,
        entries={name: name for name in ("x", "b", "dt", "log_decay")},
        state=(heads, states, channels),
        output=(heads, channels),
        absorb=absorb,
        rewrite=rewrite,
        advance=advance,
    )


def _kda(heads: int = 32, keys: int = 128, values: int = 128) -> Mixer:
    def unit(x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=-1)

    def inputs(tokens: int) -> Values:
        return {
            "q": unit(_normal(tokens, heads, keys)),
            "k": unit(_normal(tokens, heads, keys)).bfloat16(),
            "v": _normal(tokens, heads, values).bfloat16(),
            "log_g": -0.1 * _uniform(tokens, heads, keys),
            "beta": _uniform(tokens, heads),
        }

    def absorb(state: Tensor, given: Values, entry: bool) -> tuple[Tensor, Tensor]:
        state = given["log_g"].exp()[..., None] * state
        recalled = (state * given["k"][..., None]).sum(2)
        u = given["v"] if entry else given["beta"][..., None] * (given["v"] - recalled)
        state = state + given["k"][..., None] * u[:, :, None]
        return state, (state * given["q"][..., None]).sum(2)

    def rewrite(given: Values, saved: Tensor, slots: Tensor, out: Tensor, tile: Tile) -> None:
        _rewrite_kda[(values // tile[0], heads, len(slots))](
            *given.values(), out, saved, slots, H=heads, K=keys, V=values, BV=tile[0], num_warps=tile[1]
        )

    def advance(given: Values, pool: TemporalState, step: StateStep, out: Tensor, tile: Tile | None) -> None:
        tiles = (
            {} if tile is None else {"tiles": kda.Tiles(*tile), "run_tiles": kda.Tiles(*tile[:2], stages=1)}
        )
        kda.advance(**given, pool=pool, step=step, out=out, **tiles)

    return Mixer(
        name="kda",
        inputs=inputs,
        entries={"k": "k", "u": "v", "log_g": "log_g"},
        state=(heads, keys, values),
        output=(heads, values),
        absorb=absorb,
        rewrite=rewrite,
        advance=advance,
    )


# --- decode ------------------------------------------------------------------------------------------------


@dataclass
class Decode:
    """`copies` sets of rows and slots, so that consecutive launches find nothing in the L2."""

    mixer: Mixer
    copies: int
    inputs: Values
    pool: TemporalState
    steps: list[StateStep]
    out: Tensor


def decode(mixer: Mixer, batch: int, grid: int, dtype: torch.dtype) -> Decode:
    copies = copies_for(batch * torch.Size(mixer.state).numel() * dtype.itemsize)
    lanes, capacity = batch * copies, journal_capacity(grid, 1)
    drawn = mixer.inputs((lanes + 1) * capacity)
    journal = {
        name: drawn[like].unflatten(0, (lanes + 1, capacity)).float() if name == "u" else
        drawn[like].unflatten(0, (lanes + 1, capacity))
        for name, like in mixer.entries.items()
    }  # fmt: skip
    saved = torch.empty(lanes + 1, *mixer.state, dtype=dtype, device=DEVICE)
    for slot in saved:
        slot.copy_(_normal(*mixer.state))
    steps = [_step(batch, 1, grid, 1 + i * batch) for i in range(copies)]
    out = torch.full((batch, *mixer.output), torch.nan, device=DEVICE)
    return Decode(mixer, copies, mixer.inputs(batch), TemporalState(saved, journal), steps, out)


def definition(p: Decode, step: StateStep, *, journal: bool) -> tuple[Tensor, Tensor]:
    """float64, token by token, of the first lanes: outputs, and the state that is stored."""
    mixer, some = p.mixer, slice(0, CHECKED)
    state = p.pool.saved[step.read_slot[some]].double()
    end = state
    given = {name: x[some].double() for name, x in p.inputs.items()}
    if journal:
        base, position = step.base[some], step.position[some]
        for i in range(int((position - base).max())):
            place = (base + i) % p.pool.capacity
            entry = {like: p.pool.journal[name][step.rows[some], place].double()
                     for name, like in mixer.entries.items()}  # fmt: skip
            after, _ = mixer.absorb(state, {**given, **entry}, True)
            held = (base + i < position)[:, None, None, None]
            state = torch.where(held, after, state)
            at_line = (base + i + 1 == step.end_base[some])[:, None, None, None] & held
            state = torch.where(at_line, state.to(p.pool.saved.dtype).double(), state)
            end = torch.where(at_line, state, end)
    state, out = mixer.absorb(state, given, False)
    return out, end if journal else state


Way = Callable[[object, StateStep], None]


def journal_way(p: Decode, tile: Tile | None = None) -> Way:
    return lambda _, step: p.mixer.advance(p.inputs, p.pool, step, p.out, tile)


def rewrite_way(p: Decode, tile: Tile) -> Way:
    return lambda _, step: p.mixer.rewrite(p.inputs, p.pool.saved, step.read_slot, p.out, tile)


def error(p: Decode, way: Way, *, journal: bool) -> float:
    step = p.steps[0]
    wanted, state = definition(p, step, journal=journal)
    kept = p.pool.saved[step.rows].clone()
    p.out.fill_(torch.nan)
    way(p, step)
    stored = p.pool.saved[step.write_slot[:CHECKED]].double()
    p.pool.saved[step.rows] = kept
    off = float((p.out[:CHECKED].double() - wanted).norm() / wanted.norm())
    return max(off, float((stored - state).norm() / state.norm()), float(p.out.isnan().any()))


def fastest_rewriting(p: Decode) -> tuple[float, Tile, float]:
    """Microseconds, the tile, and its error."""
    tiles = [tile for tile in TILES if tile[0] <= p.mixer.width]
    best = min(tiles, key=lambda tile: microseconds(p, rewrite_way(p, tile), budget=0.03))
    return microseconds(p, rewrite_way(p, best)), best, error(p, rewrite_way(p, best), journal=False)


def variants(mixer: Mixer) -> Iterator[tuple[str, Tile | None]]:
    """Names of what is tried, and its tile; what else it needs is set while it is timed."""
    for tile in ((32, 1, 4), (32, 1, 8), (64, 2, 8)):
        yield f"tiles {tile}", tile
    module = {"ssd": ssd, "kda": kda}[mixer.name]
    folds = module.FOLDS
    for cut in FOLD_CUTS:
        module.FOLDS = FoldTiles(*cut)
        yield f"folds {cut}", None
    module.FOLDS = folds
    if mixer.name == "kda":
        for kda.FRONT_WARPS, kda.FRONT_WIDTH in ((1, 4), (2, 2)):
            yield f"front {kda.FRONT_WARPS} {kda.FRONT_WIDTH}", None
    else:
        for ssd.HEADS in (8, 16):
            yield f"front {ssd.HEADS}", None


def sweep(p: Decode) -> None:
    timed = sorted(
        (microseconds(p, journal_way(p, tile), budget=0.02), name) for name, tile in variants(p.mixer)
    )
    print(f"{p.mixer.name}: " + ", ".join(f"{name} {us:.1f}" for us, name in timed), flush=True)


def read_us(p: Decode) -> float:
    size = torch.Size(p.mixer.state).numel()

    def run(_: object, step: StateStep) -> None:
        rewriting.read[(size // 8192, len(step.rows))](
            p.pool.saved, step.read_slot, p.out, SIZE=size, BLOCK=8192, num_warps=8
        )

    return microseconds(p, run)


# --- prompts -----------------------------------------------------------------------------------------------


def prompts(mixer: Mixer, runs: int, tokens: int, tile: Tile) -> tuple[float, float]:
    """Microseconds for so many cold runs of so many tokens each; and the error of the first run's output."""
    every = torch.arange(1, runs + 1, device=DEVICE)
    none, counts = torch.zeros_like(every), torch.full_like(every, tokens)
    step = StateStep(
        rows=every, counts=counts, offsets=torch.arange(0, runs * tokens + 1, tokens, device=DEVICE),
        position=none, base=none, read_slot=every, end_base=counts // 16 * 16, write_slot=every,
        num_windows=0, longest_window=0, grid=16,
    )  # fmt: skip
    given, none_given = mixer.inputs(runs * tokens), mixer.inputs(0)
    capacity = journal_capacity(16, 1)
    pool = TemporalState(
        torch.full((runs + 1, *mixer.state), torch.nan, device=DEVICE),
        {
            name: torch.zeros(
                runs + 1, capacity, *none_given[like].shape[1:], device=DEVICE,
                dtype=torch.float32 if name == "u" else none_given[like].dtype,
            )
            for name, like in mixer.entries.items()
        },
    )  # fmt: skip
    out = torch.full((runs * tokens, *mixer.output), torch.nan, device=DEVICE)
    mixer.advance(given, pool, step, out, tile)
    state = torch.zeros(1, *mixer.state, dtype=torch.float64, device=DEVICE)
    worst, seen = 0.0, min(tokens, 512)
    for t in range(seen):
        token = {name: x[t : t + 1].double() for name, x in given.items()}
        state, wanted = mixer.absorb(state, token, False)
        worst = max(worst, float((out[t].double() - wanted[0]).norm() / wanted.norm()))
    worst = max(worst, float(out.isnan().any()))

    def run(_: object, fresh: StateStep) -> None:
        mixer.advance(given, pool, fresh, out, tile)

    problem = Decode(mixer, 1, given, pool, [step], out)
    return microseconds(problem, run), worst


def measure_decode(p: Decode) -> dict[str, Any]:
    name, batch = p.mixer.name, len(p.out)
    base, base_tile, base_error = fastest_rewriting(p)
    own, own_error = microseconds(p, journal_way(p)), error(p, journal_way(p), journal=True)
    read = read_us(p)
    print(
        f"{name} decode batch {batch:3}: read-modify-write {base:7.1f} us {base_tile}, journal {own:7.1f} us, "
        f"ratio {base / own:.2f}, reading alone {read:.1f} us, errors {base_error:.1e} {own_error:.1e}",
        flush=True,
    )
    return {
        "mixer": name, "batch": batch, "rewrite_us": base, "journal_us": own, "ratio": base / own,
        "read_us": read, "error": max(base_error, own_error), "rewrite_tile": base_tile,
    }  # fmt: skip


def measure_prompts(mixer: Mixer, runs: int, tokens: int, tiles: Sequence[Tile]) -> dict[str, Any]:
    (us, off), tile = min((prompts(mixer, runs, tokens, tile), tile) for tile in tiles)
    print(f"{mixer.name} prompts {runs:2} x {tokens:4}: {us:8.1f} us {tile}, error {off:.1e}", flush=True)
    return {"mixer": mixer.name, "runs": runs, "tokens": tokens, "us": us, "error": off, "tile": tile}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="of decode, prompts; both if none is named")
    parser.add_argument("--mixers", default="ssd,kda")
    parser.add_argument("--batches", default="256,128", help="of decode")
    parser.add_argument("--tile", help="of prompts, this one only: channels,warps")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--sweep", action="store_true", help="of decode, try other tiles")
    parser.add_argument("--launches", action="store_true", help="of decode, time each launch")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here, and these kernels are measured on nothing else.")
        return
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    rows: list[dict[str, Any]] = []
    parts = args.parts or ["decode", "prompts"]
    for mixer in ({"ssd": _ssd, "kda": _kda}[name]() for name in args.mixers.split(",")):
        if "decode" in parts:
            for batch in map(int, args.batches.split(",")):
                p = decode(mixer, batch, GRID, torch.float32)
                rows.append(measure_decode(p))
                if args.sweep:
                    sweep(p)
                if args.launches:
                    launches(p, journal_way(p))
                del p
                torch.cuda.empty_cache()
        if "prompts" in parts:
            channels, warps = map(int, args.tile.split(",")) if args.tile else (0, 0)
            tiles = [(channels, warps)] if args.tile else PROMPT_TILES
            rows += [measure_prompts(mixer, runs, tokens, tiles) for runs, tokens in ((16, 512), (1, 8192))]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    wrong = [row for row in rows if row["error"] > (1e-4 if "tokens" in row else 1e-5)]
    if wrong:
        raise SystemExit("wrong:\n  " + "\n  ".join(map(str, wrong)))


if __name__ == "__main__":
    main()
