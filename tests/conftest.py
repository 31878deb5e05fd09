"""What every test may rely on, in the environment without torch as well."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None

# processes that a test starts find the same source tree as the test
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / "src")

# tensors here are tiny: a second thread only waits for the first
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

# a deadline per example only measures how busy the machine is
hypothesis.settings.register_profile("holdfast", deadline=None)
hypothesis.settings.load_profile("holdfast")


def prepare_torch() -> None:
    from holdfast.cpu_isa import ensure_safe_bf16

    ensure_safe_bf16()
    if not _has_gpu():
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if "gpu" in item.keywords]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_gpu() -> bool:
    if not HAS_TORCH:
        return False
    import torch

    return torch.cuda.is_available()


if HAS_TORCH:
    prepare_torch()  # now: other conftests may import what reads the environment
