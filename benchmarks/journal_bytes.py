"""What the journal and the ways of others move, counted from the algorithm, beside what Nsight Compute reads.

    python benchmarks/journal_bytes.py

One layer as in `journal_kernels.py` and `journal_mixers.py`, float32, J = 16. Counted is what has to come from memory
or go there: checkpoints, entries, the tokens' inputs and outputs; not what one launch leaves for the next, since that
stays in the L2, as may the last of what is written. `ncu` must be there, and allowed to read the GPU's counters.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

import journal_kernels as delta
import journal_mixers as mixers
import rewriting
from holdfast.ops.places import TemporalState
from holdfast.ops.step import StateStep

METRICS = {"dram__bytes_read.sum": "read", "dram__bytes_write.sum": "written"}


@dataclass(frozen=True)
class Measured:
    """One way, ready to be launched once; and what it is counted to read and write, in bytes"""

    name: str
    launch: Callable[[], object]
    read: int
    written: int


def counted(pool: TemporalState, step: StateStep, inputs: int, outputs: int) -> tuple[int, int]:
    """Of the journal: checkpoints and held entries are read; lines and checkpoints of the lanes that fold as well."""
    checkpoint = pool.saved[0].nbytes
    entry = sum(ring[0, 0].nbytes for ring in pool.journal.values())
    lanes, folds = len(step.rows), int((step.end_base > step.base).sum())
    held, tokens = int((step.position - step.end_base).sum()), int(step.counts.sum())
    read = lanes * checkpoint + (held + folds * step.grid) * entry + inputs
    return read, folds * checkpoint + tokens * entry + outputs


def gated_delta(window: int, batch: int) -> Iterator[Measured]:
    case = delta.Case("verify" if window > 1 else "decode", window, batch, torch.float32, 0.0)
    p = delta.make(case, torch.float32, delta.GRID, snapshots=window > 1)
    step, inputs = p.steps[0], sum(p.inputs[name].nbytes for name in ("qk", "v", "log_g", "beta"))
    read, written = counted(p.pool, step, inputs, p.out.nbytes)
    name = f"gated delta, T = {window}, batch {batch}"
    yield Measured(f"{name}, journal", lambda: delta.journal_way()(p, step), read, written)
    states, copies = batch * p.pool.saved[0].nbytes, window if window > 1 else 0
    yield Measured(
        f"{name}, {'snapshots' if copies else 'rewritten'}",
        lambda: delta.rewrite_way(delta.kernels.Tiles(64, 2))(p, step),
        states + inputs + (states if copies else 0),
        states + states * copies + p.out.nbytes,
    )


def other(mixer: mixers.Mixer, batch: int) -> Iterator[Measured]:
    p = mixers.decode(mixer, batch, mixers.GRID, torch.float32)
    step, inputs = p.steps[0], sum(x.nbytes for x in p.inputs.values())
    read, written = counted(p.pool, step, inputs, p.out.nbytes)
    name, states = f"{mixer.name}, batch {batch}", batch * p.pool.saved[0].nbytes
    yield Measured(f"{name}, journal", lambda: mixers.journal_way(p)(p, step), read, written)
    rewrite = mixers.rewrite_way(p, (64, 4))
    yield Measured(f"{name}, rewritten", lambda: rewrite(p, step), states + inputs, states + p.out.nbytes)


def ways() -> Iterator[Measured]:
    yield from gated_delta(1, 256)
    yield from gated_delta(4, 128)
    for mixer in (mixers._ssd(), mixers._kda()):
        yield from other(mixer, 256)


def launch_all() -> None:
    """Each way once, after a launch of `read` that marks where it begins; all is compiled before."""
    nothing, slot = torch.zeros(1, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    for way in ways():
        way.launch()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        rewriting.read[(1, 1)](nothing, slot, nothing, SIZE=1, BLOCK=1, num_warps=1)
        way.launch()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        print(f"way;{way.name};{way.read};{way.written}", flush=True)


def profiled() -> tuple[list[str], list[dict[str, str]]]:
    """The ways; and a row for every metric of every launch."""
    command = [
        "ncu", "--csv", "--profile-from-start", "off", "--print-units", "base", "--metrics", ",".join(METRICS),
        sys.executable, __file__, "--once",
    ]  # fmt: skip
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = found.stdout.splitlines()
    names, table = ([line for line in lines if line.startswith(start)] for start in ("way;", '"'))
    if found.returncode or not table:
        sys.exit("ncu gave no counts:\n" + "\n".join([*lines, *found.stderr.splitlines()][-12:]))
    return names, list(csv.DictReader(table))


def report(names: list[str], rows: list[dict[str, str]]) -> None:
    sums: list[dict[str, float]] = []
    for row in rows:
        metric, value = METRICS[row["Metric Name"]], float(row["Metric Value"].replace(",", ""))
        if not row["Kernel Name"].startswith("read"):
            sums[-1][metric] += value
        elif metric == "read":  # the mark
            sums.append(dict.fromkeys(METRICS.values(), 0.0))
    print(f"{'MB':40} {'counted read':>12} {'ncu':>8} {'counted written':>16} {'ncu':>8}")
    for line, found in zip(names, sums, strict=True):
        _, name, read, written = line.split(";")
        print(
            f"{name:40} {int(read) / 1e6:12.0f} {found['read'] / 1e6:8.0f} {int(written) / 1e6:16.0f} "
            f"{found['written'] / 1e6:8.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--once", action="store_true", help="launch every way once, for ncu")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no CUDA device here, and these kernels are measured on nothing else.")
    elif args.once:
        launch_all()
    elif shutil.which("ncu") is None:
        print("There is no ncu here.")
    else:
        report(*profiled())


if __name__ == "__main__":
    main()
