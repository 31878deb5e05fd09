"""Kernels are compiled before they are needed, many at once: one after the other they are most of a start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction


def compile_ahead(work: Callable[[], object]) -> None:
    """All kernels that `work` launches, and what launches them. They are not launched: what they would have filled is
    zero, for operations of torch's may take it for indices."""
    if triton.knobs.runtime.interpret:
        return
    parse, run, turn = JITFunction.parse, JITFunction.run, Lock()

    def parsed(kernel: Any) -> Any:
        with turn:  # Python up to 3.11.8 and 3.12.2 fails where two threads build a syntax tree
            return parse(kernel)

    def only_compiled(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return run(kernel, *args, warmup=True, **options)

    def launcher(compiled: Any) -> Any:
        """Up to Triton 3.6 a C compiler makes it, for each signature; it is found again in Triton's cache."""
        kernel = compiled.result()
        return driver.active.launcher_cls(kernel.src, kernel.metadata)

    pool = ThreadPoolExecutor(os.cpu_count())
    with pool, _instead(JITFunction, parse=parsed), triton.AsyncCompileMode(pool) as compiling:
        with (
            _instead(JITFunction, run=only_compiled),
            _instead(torch, empty=torch.zeros, empty_like=torch.zeros_like),
            _instead(Tensor, new_empty=Tensor.new_zeros),
        ):
            work()
        for _ in pool.map(launcher, compiling.future_kernels.values()):
            pass  # an error would be raised here


@contextmanager
def _instead(owner: Any, **others: Any) -> Iterator[None]:
    """`others`, by the names of what they stand in for."""
    before = {name: getattr(owner, name) for name in others}
    for name, other in others.items():
        setattr(owner, name, other)
    try:
        yield
    finally:
        for name, own in before.items():
            setattr(owner, name, own)
