"""Every family's steps, rehearsed as on a GPU that is not there; nothing is compiled or launched. For test_ahead."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import triton
from tests.capacity.shapes import EVERY, write
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from holdfast.blueprint import Blueprint
from holdfast.config import EngineConfig
from holdfast.executor.inputs import uniform_shapes
from holdfast.executor.runner import Runner

SIZES: dict[str, Any] = dict(max_num_seqs=3, max_model_len=64, max_num_batched_tokens=512, memory="256MiB")


class Hopper:
    """As much of a device as a compiler asks for."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)


def main() -> None:
    wanted: Counter[str] = Counter()

    def note(*, fn: Any, **told: Any) -> bool:
        wanted[fn.name] += 1
        return True  # and go on without it

    driver.set_active(Hopper())
    triton.knobs.runtime.jit_cache_hook = note
    for name, config in EVERY.items():
        wide = {"linear_key_head_dim": 16} if "linear_key_head_dim" in config else {}
        directory = write(Path(tempfile.mkdtemp()) / "model", config | wide)
        asked = EngineConfig(backend="triton", dtype="bfloat16", load_format="dummy", **SIZES)
        blueprint = Blueprint(directory, asked)
        ensemble, limits = blueprint.build(), blueprint.capacity.limits
        if not ensemble.recordable:
            continue
        wanted.clear()
        runner = Runner(ensemble, limits, torch.device("cpu"), shapes=uniform_shapes(limits, (0,)))
        runner.compile_ahead()
        assert {"begin", "commit", "absorbed"} <= set(wanted) and len(wanted) > 12, (name, wanted)


if __name__ == "__main__":
    main()
