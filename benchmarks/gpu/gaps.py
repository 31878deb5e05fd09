"""How long the device is idle between the steps of a steady decode: from a trace of what it did."""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from .models import serving, timed
from .shapes import prompts

BATCH, PROMPT, OUT = 64, 512, 96
FIRST = "begin"
"""The kernel with which a step's work on the device begins."""


def measure(name: str, keep: Path | None) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    with serving(name, BATCH, max_model_len=1024) as llm:
        given = prompts(name, BATCH, PROMPT, 0)
        timed(llm, given, OUT)
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            timed(llm, given, OUT)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    work = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    begins = [i for i, (_, _, what) in enumerate(work) if what == FIRST]
    begins = begins[len(begins) // 4 : -8]  # steady: all lanes decode
    idle, periods = [], []
    for this, following in itertools.pairwise(begins):
        step = work[this:following]
        last = max(stop for _, stop, _ in step)
        idle.append(max(0.0, work[following][0] - last))
        periods.append(work[following][0] - work[this][0])
    if keep is not None:
        window = [list(e) for e in work[begins[0] : begins[4]]]
        with gzip.open(keep, "wt") as out:
            json.dump({"columns": ["start us", "end us", "what"], "events": window}, out)
    return {
        "model": name,
        "batch": BATCH,
        "period_us": statistics.median(periods),
        "gap_us": statistics.median(idle),
        "gap_share": statistics.median(idle) / statistics.median(periods),
    }


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['model']} batch {row['batch']}: a step every {row['period_us']:.0f} us, idle {row['gap_us']:.1f} us "
        f"({row['gap_share']:.1%}), under a profiler"
    )
