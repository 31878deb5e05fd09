"""From the start of a process to its first token, with no compiled kernels at hand; and what the time goes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from .models import options
from .shapes import MODELS, folder

LIMIT = 150
PROGRAM = """
import json, logging, sys, time
logging.basicConfig(format="%(message)s")
logging.getLogger("holdfast").setLevel(logging.INFO)
marks, kernels = [("python", time.time())], []
import torch, triton
marks.append(("torch and triton", time.time()))
from holdfast import LLM, SamplingParams, start
from holdfast.blueprint import Blueprint
from holdfast.engine import Engine
from holdfast.executor.runner import Runner
from holdfast.ops.triton_backend import TritonOps
marks.append(("holdfast", time.time()))
torch.cuda.init()
torch.zeros(1, device="cuda")
marks.append(("CUDA", time.time()))

def marked(owner, name, called):
    work = getattr(owner, name)
    def timed(*args, **others):
        result = work(*args, **others)
        torch.cuda.synchronize()
        marks.append((called, time.time()))
        return result
    setattr(owner, name, timed)

def compiled(src, metadata, metadata_group, times, cache_hit):
    if not cache_hit:
        kernels.append(getattr(times, "total", 0) / 1e6)

triton.knobs.compilation.listener = compiled
marked(Blueprint, "__init__", "model described")
marked(Blueprint, "build", "weights")
marked(Runner, "__init__", "pools")
marked(TritonOps, "compile_ahead", "compiling ahead")
marked(start, "profile", "profile")
marked(Engine, "__init__", "recording")
llm = LLM(sys.argv[1], **json.loads(sys.argv[2]))
llm.generate([list(range(100, 612))], SamplingParams(max_tokens=1, ignore_eos=True), progress=False)
marks.append(("first token", time.time()))
told = {"kernels": len(kernels), "compiling": sum(kernels), "bytes": llm.capacity.as_dict()["bytes"]}
print("@" + json.dumps({"marks": marks, **told}))
"""


def measure(name: str, lanes: int) -> dict[str, Any]:
    """compiling: seconds of all kernels together, which may be more than have passed"""
    with folder(MODELS[name]) as directory, tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TRITON_CACHE_DIR": cache}
        arguments = [directory, json.dumps(options(lanes, max_model_len=1024))]
        begun, wall = time.perf_counter(), time.time()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
            check=True,
        )
        seconds = time.perf_counter() - begun
    told = json.loads(done.stdout.rpartition("@")[2])
    spent: dict[str, float] = {}
    before = wall
    for what, when in told["marks"]:
        spent[what], before = spent.get(what, 0.0) + when - before, when
    return {
        "model": name,
        "lanes": lanes,
        "seconds": before - wall,
        "and_end": seconds,
        "spent": spent,
        "kernels": told["kernels"],
        "compiling": told["compiling"],
        "bytes": told["bytes"],
    }


def line(row: dict[str, Any]) -> str:
    spent = ", ".join(f"{what} {seconds:.1f}" for what, seconds in row["spent"].items())
    return (
        f"{row['model']}: first token after {row['seconds']:.1f} s ({spent}); "
        f"{row['kernels']} kernels took {row['compiling']:.1f} s to compile"
    )
