"""From the start of a process to its first token, with no compiled kernels at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from .models import folder, options

PROGRAM = """
import sys
from holdfast import LLM, SamplingParams
llm = LLM(sys.argv[1], **eval(sys.argv[2]))
llm.generate([list(range(100, 612))], SamplingParams(max_tokens=1, ignore_eos=True), progress=False)
"""


def measure(name: str, lanes: int) -> dict[str, Any]:
    with folder(name) as directory, tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TRITON_CACHE_DIR": cache}
        arguments = [directory, repr(options(lanes, max_model_len=1024))]
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", PROGRAM, *arguments], env=environment, check=True)
        seconds = time.perf_counter() - begun
    print(f"{name}: from process start to first token and back {seconds:.1f} s", flush=True)
    return {"model": name, "lanes": lanes, "seconds": seconds}
