"""Kernels may only touch memory of the tensors that they were given.

On a GPU an access beyond them meets whatever lies there, or ends the process. Triton's interpreter can tell where it
was made.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

Addresses = NDArray[np.uint64]


class Bounds:
    """Of the launch that is under way: where its tensors begin and end, in order."""

    def __init__(self) -> None:
        self.begins = self.ends = np.zeros(0, dtype=np.uint64)

    def enter(self, arguments: list[Any]) -> None:
        storages = [x.untyped_storage() for x in arguments if isinstance(x, torch.Tensor)]
        spans = sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages})
        self.begins, self.ends = np.array(spans, dtype=np.uint64).reshape(-1, 2).T

    def check(self, what: str, pointers: Any, mask: Any, size: int) -> None:
        touched: Addresses = np.asarray(pointers.data)[np.asarray(mask.data, dtype=bool)].astype(np.uint64)
        tensor = np.searchsorted(self.begins, touched, side="right").astype(np.int64) - 1
        beyond = (tensor < 0) | (touched + np.uint64(size) > self.ends[tensor])
        assert not beyond.any(), f"{beyond.sum()} of {len(touched)} {what} beyond all tensors: {_lines()}"


def _lines() -> str:
    """Of the kernels that are under way."""
    frames = [frame for frame in traceback.extract_stack() if "kernels" in frame.filename]
    return "; ".join(f"{frame.filename}:{frame.lineno}" for frame in frames)


def guard(patch: pytest.MonkeyPatch) -> None:
    """From now on an access beyond a launch's tensors is an error."""
    from triton.runtime import interpreter

    bounds, builder, grid = Bounds(), interpreter.InterpreterBuilder, interpreter.GridExecutor
    on_host = grid._init_args_hst

    def entered(launch: Any, *given: Any) -> Any:
        args, named = on_host(launch, *given)
        bounds.enter([*args, *named.values()])
        return args, named

    def checked(what: str, access: Callable[..., Any], pointers_at: int, mask_at: int) -> Callable[..., Any]:
        def other(made_by: Any, *given: Any) -> Any:
            pointers = given[pointers_at]
            size = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize
            bounds.check(what, pointers, given[mask_at], size)
            return access(made_by, *given)

        return other

    patch.setattr(grid, "_init_args_hst", entered)
    for name, what, *at in (
        ("create_masked_load", "loads", 0, 1),
        ("create_masked_store", "stores", 0, 2),
        ("create_atomic_rmw", "atomic operations", 1, 3),
    ):
        patch.setattr(builder, name, checked(what, getattr(builder, name), *at))
