"""Kernels compiled ahead: all that the work launches, none of which runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.capacity.shapes import LFM2, write

from holdfast import LLM

PROGRAM = '''
import sys
import torch, triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from holdfast.ops.twins.ahead import compile_ahead


class Hopper:
    """As much of a device as a compiler needs."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    launcher_cls = staticmethod(lambda src, metadata: launchers.append((src.name, metadata.num_warps)))


launchers = []


@triton.jit
def count(out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), tl.arange(0, SIZE))


def work():
    for size in (16, 32, 16):
        made = torch.empty(size, dtype=torch.int64) if size > 16 else torch.ones(size).long().new_empty(size)
        count[(1,)](made, SIZE=size)
        assert torch.ones(1)[made].sum() == size  # indices, though nothing was launched


compiled = []
triton.knobs.compilation.listener = lambda src, **told: compiled.append(src.constants)
driver.set_active(Hopper())
compile_ahead(work)
assert sorted(size for constants in compiled for size in constants.values()) == [16, 32], compiled
assert launchers == [("count", 4)] * 2, launchers
assert count.run.__name__ == "run"  # as it was
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules  # which take seconds to import
'''


def test_all_is_compiled_and_nothing_launched(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    compiling(tmp_path, str(program))


@pytest.mark.slow
def test_every_family_is_rehearsed_without_a_kernel(tmp_path: Path) -> None:
    """No operation stumbles over what kernels have not filled, in recorded steps or in a prompt."""
    compiling(tmp_path, "-m", "tests.ops.rehearse_families")


def compiling(tmp_path: Path, *program: str) -> None:
    """In a process in which kernels are not interpreted."""
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    cached = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *program], env=environment | cached, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr


@pytest.mark.gpu
def test_recording_finds_all_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from holdfast.executor.graphs import Graphs

    compiled: list[str] = []
    late: list[str] = []
    record = Graphs.record

    def watched(*args: object) -> None:
        before = len(compiled)
        record(*args)  # type: ignore[arg-type]
        late.extend(compiled[before:])

    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda src, **told: compiled.append(src.name))
    monkeypatch.setattr(Graphs, "record", watched)
    wide = LFM2 | {"vocab_size": 304}  # as no other test has it
    options = dict(dtype="bfloat16", device="cuda", memory="1GiB", max_num_seqs=9, load_format="dummy")
    LLM(write(tmp_path / "model", wide), **options)
    assert compiled and not late
