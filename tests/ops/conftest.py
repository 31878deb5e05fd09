"""Interpreted kernels are watched."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from .bounds import guard


@pytest.fixture(autouse=True)
def kernels_stay_within_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
        guard(monkeypatch)
